//! GGUF files: bytes to metadata and a tensor directory, and back.
