//! What `cargo xtask gpu-offline` asks of the kernels, a part for each of its steps.
//!
//! - `offline names PROFILE...` prints the names of the kernels of kinds of adapters, a line each.
//! - `offline kernels FOLDER NAMES PROFILE...` writes those of a file of names as drivers get them.
//! - `offline radv FOLDER OUT` compiles a folder of SPIR-V with the first Vulkan driver, which is Mesa's RADV.
//! - `offline dxc LIBRARY FOLDER` compiles a folder of HLSL with Microsoft's DXC.
//! - `offline addresses NAMES PROFILE...` executes the index arithmetic of the matrix products among a file of names.

#![allow(clippy::print_stdout, reason = "a program prints its results")]

#[cfg(all(unix, not(target_vendor = "apple")))]
mod addresses;
#[cfg(all(unix, not(target_vendor = "apple")))]
mod cost;
#[cfg(all(unix, not(target_vendor = "apple")))]
mod dxc;
#[cfg(all(unix, not(target_vendor = "apple")))]
mod interpret;
#[cfg(all(unix, not(target_vendor = "apple")))]
mod kernels;
#[cfg(all(unix, not(target_vendor = "apple")))]
mod layout;
#[cfg(all(unix, not(target_vendor = "apple")))]
mod radv;
#[cfg(all(unix, not(target_vendor = "apple")))]
mod translate;
#[cfg(all(unix, not(target_vendor = "apple")))]
mod words;

#[cfg(not(all(unix, not(target_vendor = "apple"))))]
fn main() {
    eprintln!("offline: the compilers it drives are those for Linux");
}

#[cfg(all(unix, not(target_vendor = "apple")))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["names", ref profiles @ ..] => {
            kernels::names(profiles);
            Ok(())
        }
        ["kernels", folder, names, ref profiles @ ..] => {
            kernels::run(folder.as_ref(), &kernels::Wanted::read(names.as_ref(), profiles)?)
        }
        ["radv", folder, out] => radv::run(folder.as_ref(), out.as_ref()),
        ["dxc", library, folder] => dxc::run(library.as_ref(), folder.as_ref()),
        ["addresses", names, ref profiles @ ..] => {
            Ok(addresses::run(&kernels::Wanted::read(names.as_ref(), profiles)?)?)
        }
        _ => Err("offline names PROFILE... | kernels FOLDER NAMES PROFILE... | radv FOLDER OUT | dxc LIBRARY FOLDER | \
                  addresses NAMES PROFILE..."
            .into()),
    }
}
