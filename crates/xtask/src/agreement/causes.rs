//! Why this program and another reader differ on a file: one line for each cause, found by the words of the one that refuses.

/// Who opens the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Another reader, and not this program.
    Refused,
    /// This program, and not another reader.
    OnlyHere,
}

impl Difference {
    /// How the page calls it.
    pub fn heading(self) -> &'static str {
        match self {
            Difference::Refused => "refused here",
            Difference::OnlyHere => "opened here",
        }
    }
}

/// A cause of differences.
pub struct Cause {
    pub difference: Difference,
    /// Words in the message of the one that refuses.
    says: &'static str,
    pub why: &'static str,
}

const fn refused(says: &'static str, why: &'static str) -> Cause {
    Cause { difference: Difference::Refused, says, why }
}

const fn only_here(says: &'static str, why: &'static str) -> Cause {
    Cause { difference: Difference::OnlyHere, says, why }
}

/// All causes; the first whose words are in the message counts.
pub const CAUSES: &[Cause] = &[
    refused(
        "inside tensor",
        "the data of two tensors overlap; the others read the shared bytes twice",
    ),
    refused(
        "a multiple of the alignment",
        "data begin at no multiple of the alignment; gguf does not check",
    ),
    refused(
        "UTF-8 text",
        "a name or string is not UTF-8, as the format demands; the others keep the bytes",
    ),
    refused(
        "a power of two from",
        "an alignment that is no power of two from 8 to 1 MiB; gguf takes any number",
    ),
    refused(
        "a name of visible characters",
        "a name has control characters, which would reach terminals and logs",
    ),
    refused("no dimension of 0", "a tensor without elements; gguf reads an empty array"),
    refused("a size below 2^63", "a tensor ends beyond byte 2^63; gguf's sum wraps around"),
    refused("tensor type id", "a tensor of a type that llama.cpp uses only inside, such as Q8_1"),
    refused("; the format knows 0 to 6", "a token's type is not one of the format's seven"),
    refused(
        "scores must be finite",
        "a token's score is not finite, so that no best split of a text exists",
    ),
    refused(
        "tokenizer.ggml.pre is absent",
        "how text is cut into words is unknown; llama.cpp warns and takes a default",
    ),
    refused(
        "found nothing",
        "a key that this program's configuration of the architecture needs is absent",
    ),
    refused(
        "and a vocabulary of model",
        "scores or a special token that the vocabulary needs are absent",
    ),
    refused(
        "asks for a token at each text's",
        "scores or a special token that the vocabulary needs are absent",
    ),
    refused(
        "the first is no token",
        "a merge of parts that are no tokens, which llama.cpp never applies",
    ),
    refused(
        "the second is no token",
        "a merge of parts that are no tokens, which llama.cpp never applies",
    ),
    refused(
        "and the vocabulary has",
        "a special token beyond the vocabulary; llama.cpp warns and goes without",
    ),
    refused(
        "is a vector and must be",
        "a norm or bias in blocks of a quantized type, for which there is no kernel here",
    ),
    refused("expected an array of", "an array of another type than the key has"),
    refused(
        "; convert the model again",
        "a number of the configuration outside of the range that can be computed with",
    ),
    only_here(
        ", expected ",
        "a gap between the data of two tensors; llama.cpp demands none, the format and gguf do not",
    ),
    only_here(
        "TENSOR_ALIGN",
        "an alignment below 32, at which llama.cpp's process ends by an assertion",
    ),
    only_here(
        "has wrong type",
        "a whole number in another integer type than llama.cpp demands, with a value that fits",
    ),
    only_here(
        "invalid gguf type for",
        "the types of tokens in another integer type than llama.cpp demands, with values that fit",
    ),
    only_here(
        "id_to_token.size()",
        "two tokens have one text, at which llama.cpp's process ends by an assertion",
    ),
    only_here(
        "c->type == GGML_TYPE_F32",
        "a norm in F16 or BF16, at which llama.cpp's process ends by an assertion",
    ),
];

/// What the causes are called, each once: some are found by several messages.
pub fn names() -> Vec<(Difference, &'static str)> {
    let mut names: Vec<_> = CAUSES.iter().map(|cause| (cause.difference, cause.why)).collect();
    names.dedup();
    names
}

/// The cause of a difference, by what the one that refuses says.
pub fn of(difference: Difference, reason: &str) -> Option<&'static Cause> {
    CAUSES.iter().find(|cause| cause.difference == difference && reason.contains(cause.says))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{CAUSES, Difference, names, of};

    #[test]
    fn a_cause_holds_in_its_own_direction_only() {
        let says = "tensor x has offset 64, expected 32";
        assert_eq!(of(Difference::OnlyHere, says).unwrap().says, ", expected ");
        assert!(of(Difference::Refused, says).is_none() && of(Difference::OnlyHere, "").is_none());
        let names = names();
        let whys: BTreeSet<_> = names.iter().map(|(_, why)| why).collect();
        assert_eq!(whys.len(), names.len(), "causes of one name follow each other");
        assert!(CAUSES.iter().all(|cause| cause.says.len() > 8 && cause.why.len() < 110));
    }
}
