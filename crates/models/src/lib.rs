//! Architectures, one file each: configuration from metadata, the recorded block, checkpoint names.
