//! What can be wrong with a file that is to be made.

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody asked for a shape that is not in the table.
    #[error("`{name}` is no shape; known are {}", crate::synth::Shape::names())]
    UnknownShape {
        /// The name asked for.
        name: String,
    },
    /// Somebody asked for a mix or type that is not in the tables.
    #[error("`{name}` is no type; known are {}", crate::mix::Mix::names())]
    UnknownType {
        /// The name asked for.
        name: String,
    },
    /// A size that no model of the shape can have.
    #[error("{what} is {found}; it must be {expected}")]
    Size {
        /// The size, by its flag.
        what: &'static str,
        /// What it may be.
        expected: String,
        /// What was asked for.
        found: u64,
    },
    /// The type cannot hold random weights: it is made for tables and indices.
    #[error("weights are never stored as {ty}; choose a floating-point or quantized type")]
    NotForWeights {
        /// The type's name.
        ty: &'static str,
    },
    /// A type for tensors by name that cannot be read.
    #[error("--tensor-type {given}: {reason}")]
    Override {
        /// What was given.
        given: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor is to get a type that this build only reads.
    #[error("tensor {tensor}: {ty} can be read but not made; choose another type")]
    Unwritable {
        /// The tensor's name.
        tensor: String,
        /// The type's name.
        ty: &'static str,
    },
    /// A tensor that is quantized already.
    #[error(
        "tensor {tensor} is quantized already, to {ty}, and would lose more than once; start from an F16, BF16 or F32 \
         file, or do it anyway with --allow-requantize"
    )]
    Requantize {
        /// The tensor's name.
        tensor: String,
        /// Its type.
        ty: &'static str,
    },
    /// The new file would take the place of one that it is made from.
    #[error("{file}: input and output are the same file; write the new one under another name")]
    SameFile {
        /// The file's path.
        file: String,
    },
    /// A weight of the input that is infinite or no number.
    #[error("tensor {tensor}: {reason}")]
    Weight {
        /// The tensor's name.
        tensor: String,
        /// Which weight, and what it is.
        reason: String,
    },
    /// A GGUF file that is no importance matrix.
    #[error(
        "{file}: expected an importance matrix (general.type = imatrix), found {found}, which is no importance matrix; \
         make one with `bilayer imatrix`"
    )]
    NoImatrix {
        /// The file.
        file: String,
        /// What its `general.type` is.
        found: String,
    },
    /// A file that is neither GGUF nor an importance matrix from before it.
    #[error(
        "{file}: not a GGUF file, and no importance matrix of llama.cpp's older form: {reason}; make one with \
         `bilayer imatrix`"
    )]
    OldImatrix {
        /// The file.
        file: String,
        /// Why it is none.
        reason: String,
    },
    /// A tensor's sums in an importance matrix that cannot be used.
    #[error("{tensor}: {reason}")]
    Sums {
        /// The tensor of the model.
        tensor: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// An importance matrix of another model.
    #[error(
        "tensor {tensor}: expected {} matrices of {} columns in the importance matrix, found {} of {}; it is of another \
         model", expected[0], expected[1], found[0], found[1]
    )]
    ImatrixShape {
        /// The tensor's name.
        tensor: String,
        /// Matrices and columns of the tensor.
        expected: [u64; 2],
        /// Those of the importance matrix.
        found: [u64; 2],
    },
    /// A file of a checkpoint that is missing, damaged or of an unknown kind.
    #[error("{file}: {reason}")]
    Checkpoint {
        /// The file.
        file: String,
        /// What is wrong with it: the field, and what may stand there.
        reason: String,
    },
    /// A checkpoint's settings describe no model that can be run.
    #[error("{file}: {source}")]
    OfCheckpoint {
        /// The file.
        file: String,
        /// What is wrong with it.
        source: Box<bilayer_models::Error>,
    },
    /// A tensor of a checkpoint that has no place in the file.
    #[error("tensor {tensor}: {reason}")]
    Tensor {
        /// The checkpoint's name of it.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A checkpoint's tensors make no whole model.
    #[error("the checkpoint is not complete: {source}")]
    Incomplete {
        /// What is missing, by GGUF's names.
        source: Box<bilayer_models::Error>,
    },
    /// A checkpoint's tokenizer that nobody could use.
    #[error("{file}: {source}")]
    Tokenizer {
        /// The file.
        file: String,
        /// What is wrong with it.
        source: Box<bilayer_text::Error>,
    },
    /// A folder without a tokenizer.
    #[error(
        "{folder}: there is no tokenizer.json, tokenizer.model or vocab.txt; download the tokenizer too, or do without one \
         with --no-vocab, for a file that takes and gives token ids"
    )]
    NoTokenizer {
        /// The folder.
        folder: String,
    },
    /// The sizes make no model that can be read back.
    #[error(transparent)]
    Model(#[from] bilayer_models::Error),
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] bilayer_gguf::Error),
    /// The threads that make weights cannot be started.
    #[error("{threads} threads cannot be started: {reason}; use fewer")]
    Threads {
        /// How many.
        threads: usize,
        /// The operating system's reason.
        reason: String,
    },
    /// No choice of types makes the model as small as it shall be.
    #[error(
        "--target-bpw is {given}; with the smallest types it is {least:.3}: give at least that"
    )]
    Budget {
        /// Bits a weight that were asked for.
        given: f64,
        /// Bits a weight of the smallest types.
        least: f64,
    },
    /// The calibration text cannot be run.
    #[error(transparent)]
    Calibration(bilayer_measure::Error),
    /// The base's logits cannot be kept in a temporary file.
    #[error(
        "the logits cannot be kept in a temporary file: {0}; make room in the folder for temporary files"
    )]
    Scratch(#[source] std::io::Error),
    /// The caller asked to stop; nothing is left behind.
    #[error("interrupted")]
    Interrupted,
}
