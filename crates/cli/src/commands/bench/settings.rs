//! The settings in which results can differ: columns of the table, and parts of a result's name on the page.

/// A setting.
pub struct Setting {
    /// The field of a result.
    pub field: &'static str,
    /// Heading of its column.
    pub head: &'static str,
    /// Width of its column.
    pub width: usize,
    /// Alignment of its column.
    pub side: Side,
    /// What precedes its value in a name.
    pub flag: &'static str,
}

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

/// All of them, in the order of columns and of the parts of a name.
pub const SETTINGS: [Setting; 20] = [
    setting("n_gpu_layers", ("ngl", 3, Side::Right), "-ngl "),
    setting("n_cpu_moe", ("n_cpu_moe", 10, Side::Right), "-ncmoe "),
    setting("n_threads", ("threads", 7, Side::Right), "-t "),
    setting("cpu_level", ("level", 10, Side::Left), ""),
    setting("numa", ("numa", 10, Side::Left), "numa "),
    setting("n_batch", ("n_batch", 7, Side::Right), "-b "),
    setting("n_ubatch", ("n_ubatch", 8, Side::Right), "-ub "),
    setting("type_k", ("type_k", 6, Side::Left), "-ctk "),
    setting("type_v", ("type_v", 6, Side::Left), "-ctv "),
    setting("k_cache_hadamard", ("khad", 5, Side::Left), "khad "),
    setting("fast_prefill", ("fast", 5, Side::Left), "fast prefill "),
    setting("split_mode", ("sm", 5, Side::Left), "-sm "),
    setting("main_gpu", ("mg", 2, Side::Right), "-mg "),
    setting("no_kv_offload", ("nkvo", 10, Side::Right), "-nkvo "),
    setting("flash_attn", ("fa", 3, Side::Right), "-fa "),
    setting("devices", ("dev", 12, Side::Left), "-dev "),
    setting("tensor_split", ("ts", 12, Side::Right), "-ts "),
    setting("use_mmap", ("mmap", 4, Side::Right), "mmap "),
    setting("tensor_buft_overrides", ("ot", 21, Side::Left), "-ot "),
    setting("no_op_offload", ("nopo", 4, Side::Right), "-nopo "),
];

const fn setting(
    field: &'static str,
    (head, width, side): (&'static str, usize, Side),
    flag: &'static str,
) -> Setting {
    Setting { field, head, width, side, flag }
}
