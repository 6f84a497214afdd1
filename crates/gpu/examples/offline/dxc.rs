//! Compiles HLSL with Microsoft's DXC and tells which files it refuses.
//!
//! The library is DXC 1.7 for Linux (`libdxcompiler.so.3.7`), whose interfaces have two virtual destructors after the
//! three functions of `IUnknown`; later versions have none.
//!
//! When several threads load it, compile and unload it, it crashes now and then (a segmentation fault), although each thread has a
//! compiler of its own. So one thread compiles, and the library is never unloaded. Run several processes to compile in parallel.

use std::error::Error;
use std::ffi::c_void;
use std::path::{Path, PathBuf};

/// Compiles the HLSL of a folder. Prints `@ name` of each file and, where DXC refuses it, `failed=` with the first line
/// of the reason.
pub fn run(library: &Path, folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut files = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<PathBuf>, std::io::Error>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "hlsl"));
    files.sort();
    let compiler = Compiler::load(library)?;
    for path in &files {
        print!("{}", section(&compiler, path)?);
    }
    Ok(())
}

/// What is printed of a file.
fn section(compiler: &Compiler, path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(match compiler.compile(&text) {
        Ok(()) => format!("@ {name}\n"),
        Err(reason) => {
            format!("@ {name}\nfailed={}\n", reason.lines().next().unwrap_or("no reason"))
        }
    })
}

/// A COM interface identifier.
#[repr(C)]
struct Guid(u32, u16, u16, [u8; 8]);

const DXC_COMPILER: Guid =
    Guid(0x73e2_2d93, 0xe6ce, 0x47f3, [0xb5, 0xbf, 0xf0, 0x66, 0x4f, 0x39, 0xc1, 0xb0]);
const IDXC_COMPILER_3: Guid =
    Guid(0x228b_4687, 0x5a6a, 0x4730, [0x90, 0x0c, 0x97, 0x02, 0xb2, 0x20, 0x3f, 0x54]);
const IDXC_RESULT: Guid =
    Guid(0x5834_6cda, 0xdde7, 0x4497, [0x94, 0x61, 0x6f, 0x87, 0xaf, 0x5e, 0x06, 0x59]);

/// Places of functions in the tables of virtual functions.
const RELEASE: usize = 2;
const COMPILE: usize = 5;
const GET_STATUS: usize = 5;
const GET_ERRORS: usize = 7;
const GET_POINTER: usize = 5;
const GET_SIZE: usize = 6;

const UTF8: u32 = 65001;

type Create = unsafe extern "C" fn(*const Guid, *const Guid, *mut *mut c_void) -> i32;
type Compile = unsafe extern "C" fn(
    *mut c_void,
    *const Buffer,
    *const *const u32,
    u32,
    *mut c_void,
    *const Guid,
    *mut *mut c_void,
) -> i32;
type Release = unsafe extern "C" fn(*mut c_void) -> u32;
type GetStatus = unsafe extern "C" fn(*mut c_void, *mut i32) -> i32;
type GetErrors = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> i32;
type GetPointer = unsafe extern "C" fn(*mut c_void) -> *const u8;
type GetSize = unsafe extern "C" fn(*mut c_void) -> usize;

#[repr(C)]
struct Buffer {
    text: *const u8,
    len: usize,
    encoding: u32,
}

/// An object of the library, released when dropped.
struct Object(*mut c_void);

impl Object {
    /// A virtual function.
    ///
    /// # Safety
    /// The object's interface has a function of type `F` at this place.
    unsafe fn function<F: Copy>(&self, place: usize) -> F {
        assert_eq!(size_of::<F>(), size_of::<*const c_void>(), "a function pointer");
        // SAFETY: a COM object begins with the pointer to its table, which has the function by the caller's word.
        unsafe {
            let table = *self.0.cast::<*const *const c_void>();
            std::mem::transmute_copy(&*table.add(place))
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: every interface has Release there, and no one uses the object any more.
        unsafe { self.function::<Release>(RELEASE)(self.0) };
    }
}

/// DXC.
pub struct Compiler {
    object: Object,
}

impl Compiler {
    /// Loads the library, which stays loaded.
    pub fn load(path: &Path) -> Result<Compiler, String> {
        // SAFETY: loading DXC runs its initialization only.
        let library = unsafe { libloading::Library::new(path) }.map_err(|e| e.to_string())?;
        let library = Box::leak(Box::new(library));
        // SAFETY: this is the function's type in dxcapi.h.
        let create: libloading::Symbol<'_, Create> =
            unsafe { library.get(b"DxcCreateInstance") }.map_err(|error| error.to_string())?;
        let mut object = std::ptr::null_mut();
        // SAFETY: the identifiers are those of the class and of its interface.
        let status = unsafe { create(&DXC_COMPILER, &IDXC_COMPILER_3, &mut object) };
        if status < 0 || object.is_null() {
            return Err(format!("DxcCreateInstance: {status:#x}"));
        }
        Ok(Compiler { object: Object(object) })
    }

    /// Compiles a compute shader for shader model 6.5, to the messages where it is refused.
    pub fn compile(&self, text: &str) -> Result<(), String> {
        let arguments = ["-E", "main", "-T", "cs_6_5", "-HV", "2018", "-no-warnings", "-Vd"];
        let wide: Vec<Vec<u32>> =
            arguments.iter().map(|a| a.chars().map(u32::from).chain([0]).collect()).collect();
        let pointers: Vec<*const u32> = wide.iter().map(|text| text.as_ptr()).collect();
        let source = Buffer { text: text.as_ptr(), len: text.len(), encoding: UTF8 };
        let mut result = std::ptr::null_mut();
        // SAFETY: the place and type are those of IDxcCompiler3; all pointers live through the call.
        let status = unsafe {
            self.object.function::<Compile>(COMPILE)(
                self.object.0,
                &source,
                pointers.as_ptr(),
                pointers.len() as u32,
                std::ptr::null_mut(),
                &IDXC_RESULT,
                &mut result,
            )
        };
        if status < 0 || result.is_null() {
            return Err(format!("Compile: {status:#x}"));
        }
        let result = Object(result);
        let mut status = 0;
        // SAFETY: the place and type are those of IDxcResult.
        unsafe { result.function::<GetStatus>(GET_STATUS)(result.0, &mut status) };
        if status >= 0 { Ok(()) } else { Err(messages(&result)) }
    }
}

/// The messages of a result.
fn messages(result: &Object) -> String {
    let mut blob = std::ptr::null_mut();
    // SAFETY: the place and type are those of IDxcResult.
    unsafe { result.function::<GetErrors>(GET_ERRORS)(result.0, &mut blob) };
    if blob.is_null() {
        return String::new();
    }
    let blob = Object(blob);
    // SAFETY: the places and types are those of IDxcBlob, whose bytes live as long as it.
    unsafe {
        let bytes = blob.function::<GetPointer>(GET_POINTER)(blob.0);
        let len = blob.function::<GetSize>(GET_SIZE)(blob.0);
        if bytes.is_null() {
            return String::new();
        }
        String::from_utf8_lossy(std::slice::from_raw_parts(bytes, len)).into_owned()
    }
}
