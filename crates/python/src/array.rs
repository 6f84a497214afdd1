//! Rows of numbers that NumPy uses where they are.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// An array of f32, rightmost contiguous. NumPy reads it through `__array_interface__`, version 3, without a copy, and keeps
/// the object; it is read-only, since nothing may change what is shared.
#[pyclass(frozen, module = "bilayer._native")]
pub struct Array {
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

#[pymethods]
impl Array {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let order = if cfg!(target_endian = "little") { '<' } else { '>' };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", format!("{order}f4"))?;
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("data", (self.data.as_ptr().addr(), true))?;
        Ok(interface)
    }

    fn __len__(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }
}
