"""Makes the importance matrices beside it, in both forms of llama-imatrix, with nothing of ours.

    python make.py            # gguf 0.19, numpy

A matrix of eight columns, a stack of three experts of four, of which the second met no token, and a matrix whose only row
has two dimensions, as other tools write it. Layout: `save_imatrix` and `save_imatrix_legacy` of llama.cpp's tools/imatrix.
"""

import pathlib
import struct

import gguf
import numpy as np

FOLDER = pathlib.Path(__file__).parent
CHUNKS, CHUNK_SIZE, DATASET = 3, 8, "calibration.txt"

dense = np.arange(1, 9, dtype=np.float32) * 24
stack = np.array([[20, 40, 60, 80], [0, 0, 0, 0], [1, 2, 3, 4]], dtype=np.float32)
counts = np.array([[20], [0], [4]], dtype=np.float32)
row = np.array([[6, 12, 18]], dtype=np.float32)

writer = gguf.GGUFWriter(FOLDER / "llama.gguf", "")
writer.kv_data[0].clear()  # llama-imatrix names no architecture.
writer.add_string("general.type", "imatrix")
writer.add_array("imatrix.datasets", [DATASET])
writer.add_uint32("imatrix.chunk_count", CHUNKS)
writer.add_uint32("imatrix.chunk_size", CHUNK_SIZE)
for name, sums, of in [
    ("blk.0.attn_q.weight", dense, np.array([24], dtype=np.float32)),
    ("blk.0.ffn_up_exps.weight", stack, counts),
    ("blk.0.ffn_down.weight", row, np.array([[6]], dtype=np.float32)),
]:
    writer.add_tensor(f"{name}.in_sum2", sums)
    writer.add_tensor(f"{name}.counts", of)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

# Values of the older form are means times windows, 1 throughout an expert that met no token.
means = np.divide(stack, counts, out=np.ones_like(stack), where=counts > 0)
old = struct.pack("<i", 2)
for name, values in [("blk.0.attn_q.weight", dense / 24), ("blk.0.ffn_up_exps.weight", means)]:
    old += struct.pack("<i", len(name)) + name.encode()
    old += struct.pack("<ii", CHUNKS, values.size) + (values * CHUNKS).astype("<f4").tobytes()
old += struct.pack("<ii", CHUNKS, len(DATASET)) + DATASET.encode()
(FOLDER / "llama.dat").write_bytes(old)
