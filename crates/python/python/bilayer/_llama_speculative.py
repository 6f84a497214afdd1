"""llama-cpp-python's draft by lookup, on arrays of tokens. `Bilayer` does it itself with ``lookup=True``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class LlamaPromptLookupDecoding:
    """Drafts the tokens that followed an earlier occurrence of the latest ones."""

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        self.max_ngram_size = max_ngram_size
        self.num_pred_tokens = num_pred_tokens

    @staticmethod
    def find_candidate_pred_tokens(
        input_ids: NDArray[np.intc], max_ngram_size: int, num_pred_tokens: int
    ) -> NDArray[np.intc]:
        """Return the draft after the first occurrence of the longest possible ending; empty without one."""
        ids = input_ids.tolist()
        for size in range(min(max_ngram_size, len(ids) - 1), 0, -1):
            ending = ids[-size:]
            for begin in range(len(ids) - size):
                if ids[begin : begin + size] == ending:
                    return input_ids[begin + size : begin + size + num_pred_tokens]
        return input_ids[:0]

    def __call__(self, input_ids: NDArray[np.intc], /, **_: Any) -> NDArray[np.intc]:
        return self.find_candidate_pred_tokens(input_ids, self.max_ngram_size, self.num_pred_tokens)
