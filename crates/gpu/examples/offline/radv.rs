//! Compiles SPIR-V with the first Vulkan driver and tells what it says of the machine code.

use std::error::Error;
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};

use ash::{Device, Entry, Instance, khr, vk};

/// Storage bindings after the uniform, more than any kernel has.
const BINDINGS: u32 = 17;

/// Compiles the SPIR-V of a folder. Prints `@ name` and lines `key=value` of each file (registers, occupancy, instruction
/// counts), and writes the driver's disassembly to `out/name.asm`.
pub fn run(folder: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(out)?;
    let compiler = Compiler::new()?;
    println!("device={}", compiler.describe());
    let mut files = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<PathBuf>, std::io::Error>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "spv"));
    files.sort();
    for path in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        println!("@ {name}");
        let words = ash::util::read_spv(&mut std::fs::File::open(&path)?)?;
        match compiler.compile(&words) {
            Ok(compiled) => {
                compiled.statistics.iter().for_each(|(key, value)| println!("{key}={value}"));
                std::fs::write(out.join(format!("{name}.asm")), compiled.assembly)?;
            }
            Err(error) => println!("failed={error}"),
        }
    }
    Ok(())
}

/// A device on which pipelines can be made, and perhaps nothing else.
pub struct Compiler {
    // Dropped last: the functions of all others come from it.
    _entry: Entry,
    instance: Instance,
    physical: vk::PhysicalDevice,
    device: Device,
    executable: khr::pipeline_executable_properties::Device,
    layout: vk::PipelineLayout,
}

/// What a driver says of one pipeline.
pub struct Compiled {
    /// Names and values, as the driver has them.
    pub statistics: Vec<(String, String)>,
    /// The machine code, disassembled.
    pub assembly: Vec<u8>,
}

impl Compiler {
    /// The first device of the first driver that the loader finds.
    pub fn new() -> Result<Compiler, Box<dyn Error>> {
        let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let info = vk::InstanceCreateInfo::default().application_info(&app);
        // SAFETY: the loader is a Vulkan loader; the entry outlives all that is made from it.
        let entry = unsafe { Entry::load() }?;
        // SAFETY: `info` and what it points to live through the call.
        let instance = unsafe { entry.create_instance(&info, None) }?;
        // SAFETY: the instance lives.
        let found = unsafe { instance.enumerate_physical_devices() }?;
        let physical = *found.first().ok_or("the Vulkan driver has no device")?;
        let device = device(&instance, physical)?;
        let executable = khr::pipeline_executable_properties::Device::new(&instance, &device);
        let layout = layout(&device)?;
        Ok(Compiler { _entry: entry, instance, physical, device, executable, layout })
    }

    /// The device's name.
    pub fn describe(&self) -> String {
        // SAFETY: the physical device belongs to the instance.
        let found = unsafe { self.instance.get_physical_device_properties(self.physical) };
        text(&found.device_name)
    }

    /// Makes a compute pipeline of SPIR-V whose entry point is `main`.
    pub fn compile(&self, words: &[u32]) -> Result<Compiled, vk::Result> {
        let info = vk::ShaderModuleCreateInfo::default().code(words);
        // SAFETY: the words are SPIR-V that naga wrote, and live through the call.
        let module = unsafe { self.device.create_shader_module(&info, None) }?;
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main");
        let info = vk::ComputePipelineCreateInfo::default()
            .flags(
                vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
                    | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR,
            )
            .stage(stage)
            .layout(self.layout);
        let none = vk::PipelineCache::null();
        // SAFETY: module and layout belong to the device and live through the call.
        let made = unsafe { self.device.create_compute_pipelines(none, &[info], None) };
        let pipeline = made.map_err(|(_, error)| error)?[0];
        let compiled = self.describe_pipeline(pipeline);
        // SAFETY: nothing uses them any more.
        unsafe {
            self.device.destroy_pipeline(pipeline, None);
            self.device.destroy_shader_module(module, None);
        }
        compiled
    }

    fn describe_pipeline(&self, pipeline: vk::Pipeline) -> Result<Compiled, vk::Result> {
        let info = vk::PipelineInfoKHR::default().pipeline(pipeline);
        // SAFETY: the pipeline was made with statistics captured, as in the calls below.
        let found = unsafe { self.executable.get_pipeline_executable_properties(&info) }?;
        let size = found.first().map_or(0, |first| first.subgroup_size);
        let mut statistics = vec![("Subgroup Size".to_owned(), size.to_string())];
        let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
        // SAFETY: as above.
        let known = unsafe { self.executable.get_pipeline_executable_statistics(&info) }?;
        for one in &known {
            statistics.push((text(&one.name), value(one)));
        }
        Ok(Compiled { statistics, assembly: self.assembly(&info)? })
    }

    /// The last internal representation: drivers go from the intermediate ones to the machine code.
    fn assembly(&self, info: &vk::PipelineExecutableInfoKHR<'_>) -> Result<Vec<u8>, vk::Result> {
        let call = self.executable.fp().get_pipeline_executable_internal_representations_khr;
        let device = self.device.handle();
        let mut count = 0;
        // SAFETY: a null pointer asks for the number alone.
        unsafe { call(device, info, &mut count, std::ptr::null_mut()) }.result()?;
        let mut found =
            vec![vk::PipelineExecutableInternalRepresentationKHR::default(); count as usize];
        // SAFETY: `found` has `count` elements; without data pointers only the sizes are told.
        unsafe { call(device, info, &mut count, found.as_mut_ptr()) }.result()?;
        let mut data: Vec<Vec<u8>> = found.iter().map(|one| vec![0; one.data_size]).collect();
        for (one, data) in found.iter_mut().zip(&mut data) {
            one.p_data = data.as_mut_ptr().cast();
        }
        // SAFETY: each pointer has the bytes that the driver said it needs.
        unsafe { call(device, info, &mut count, found.as_mut_ptr()) }.result()?;
        Ok(data.pop().unwrap_or_default())
    }
}

/// The device with the features that wgpu would ask for, where it has them.
fn device(instance: &Instance, physical: vk::PhysicalDevice) -> Result<Device, vk::Result> {
    let mut vulkan11 = vk::PhysicalDeviceVulkan11Features::default();
    let mut vulkan12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut vulkan13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut robust = vk::PhysicalDeviceRobustness2FeaturesEXT::default();
    let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut executable = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
    // SAFETY: the physical device belongs to the instance.
    let known = unsafe { instance.enumerate_device_extension_properties(physical) }?;
    let has = |name: &CStr| {
        known.iter().any(|one| one.extension_name_as_c_str().is_ok_and(|known| known == name))
    };
    let mut names: Vec<*const c_char> = vec![khr::pipeline_executable_properties::NAME.as_ptr()];
    let mut features = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut vulkan11)
        .push_next(&mut vulkan12)
        .push_next(&mut vulkan13)
        .push_next(&mut executable);
    if has(ash::ext::robustness2::NAME) {
        names.push(ash::ext::robustness2::NAME.as_ptr());
        features = features.push_next(&mut robust);
    }
    if has(khr::cooperative_matrix::NAME) {
        names.push(khr::cooperative_matrix::NAME.as_ptr());
        features = features.push_next(&mut matrices);
    }
    // SAFETY: every structure of the chain lives until the device is made.
    unsafe { instance.get_physical_device_features2(physical, &mut features) };
    let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
    let info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&names)
        .push_next(&mut features);
    // SAFETY: the extensions are among those enumerated, the features those that the device has.
    unsafe { instance.create_device(physical, &info, None) }
}

/// A uniform and storage buffers, as all our kernels bind them.
fn layout(device: &Device) -> Result<vk::PipelineLayout, vk::Result> {
    let binding = |number: u32| {
        let ty = match number {
            0 => vk::DescriptorType::UNIFORM_BUFFER,
            _ => vk::DescriptorType::STORAGE_BUFFER,
        };
        vk::DescriptorSetLayoutBinding::default()
            .binding(number)
            .descriptor_type(ty)
            .descriptor_count(1)
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
    };
    let bindings: Vec<_> = (0..BINDINGS).map(binding).collect();
    let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
    // SAFETY: the bindings live through the call.
    let sets = [unsafe { device.create_descriptor_set_layout(&info, None) }?];
    let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
    // SAFETY: the set layout belongs to the device.
    unsafe { device.create_pipeline_layout(&info, None) }
}

/// A statistic's value as text.
fn value(one: &vk::PipelineExecutableStatisticKHR<'_>) -> String {
    // SAFETY: the format says which field of the union the driver has filled.
    unsafe {
        match one.format {
            vk::PipelineExecutableStatisticFormatKHR::BOOL32 => one.value.b32.to_string(),
            vk::PipelineExecutableStatisticFormatKHR::INT64 => one.value.i64.to_string(),
            vk::PipelineExecutableStatisticFormatKHR::FLOAT64 => one.value.f64.to_string(),
            _ => one.value.u64.to_string(),
        }
    }
}

/// Characters up to the zero.
fn text(characters: &[c_char]) -> String {
    let bytes = characters.iter().map(|&c| c.cast_unsigned()).take_while(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}
