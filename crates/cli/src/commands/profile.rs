//! `bilayer profile`: how the speed depends on the number of offloaded layers.

mod charts;
mod columns;
mod files;
mod page;
mod table;

pub use files::write;
pub use table::text;
