//! A disk under drafts that notes operations, and refuses one.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex};

use bilayer_files::{Disk, Operation};

/// A disk that notes all operations, and refuses the one after `passes` others.
#[derive(Default)]
pub struct Noting {
    operations: Mutex<Vec<Operation>>,
    refused: Option<(usize, ErrorKind)>,
}

impl Noting {
    /// One that refuses an operation with an error of `kind`.
    pub fn refusing(passes: usize, kind: ErrorKind) -> Arc<Self> {
        Arc::new(Self { refused: Some((passes, kind)), ..Self::default() })
    }

    /// The operations so far.
    pub fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap().clone()
    }
}

impl Disk for Noting {
    fn before(&self, operation: Operation) -> io::Result<()> {
        let mut operations = self.operations.lock().unwrap();
        operations.push(operation);
        match self.refused {
            Some((passes, kind)) if operations.len() == passes + 1 => Err(kind.into()),
            _ => Ok(()),
        }
    }
}
