//! A machine being simulated: its devices' facts, their common clock, and what each is doing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bilayer_graph::{Clock, Facts};
use bilayer_scheduler::Machine;

use crate::Error;
use crate::description::{self, Described, Faults};

/// What is done besides keeping time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// Everything is computed, so results are right.
    #[default]
    Compute,
    /// Nothing is computed or stored, and all results are 0: for models that this machine cannot hold.
    ScheduleOnly,
}

/// A simulated machine. Clones share clock, devices and memory, so models that run on it side by side share them too.
#[derive(Clone, Debug)]
pub struct Simulation {
    execution: Execution,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    facts: Vec<Facts>,
    /// Of each device, when it fails.
    faults: Vec<Faults>,
    clock: Clock,
    occupancies: Vec<Mutex<Occupancy>>,
}

/// What a device is doing, for all sessions on it.
#[derive(Clone, Copy, Debug)]
pub struct Occupancy {
    /// When all work submitted so far will be done.
    pub work_end: Instant,
    /// When all transfers to it begun so far will be done. Transfers run beside kernels.
    pub upload_end: Instant,
    /// Bytes of its memory in use.
    pub used_bytes: u64,
    /// Number of submits.
    pub submits: u64,
}

impl PartialEq for Simulation {
    /// Whether both are the same machine, with the same execution.
    fn eq(&self, other: &Simulation) -> bool {
        self.execution == other.execution && Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Simulation {
    /// A simulation of a machine whose first device is the host; the time is 0.
    ///
    /// # Errors
    /// [`Error::Missing`]: bandwidth or compute of a device is not described.
    pub fn new(machine: Machine, execution: Execution) -> Result<Simulation, Error> {
        let faults = vec![Faults::default(); machine.devices.len()];
        Simulation::of(Described { machine, faults }, execution)
    }

    fn of(Described { machine, faults }: Described, execution: Execution) -> Result<Self, Error> {
        for (facts, device) in machine.devices.iter().zip(machine.labels()) {
            let figures = [("read_gbps", facts.read_gbps), ("tops", facts.tops)];
            if let Some((key, _)) = figures.into_iter().find(|(_, figure)| figure.is_none()) {
                return Err(Error::Missing { device, key });
            }
        }
        let clock = Clock::simulated();
        let now = clock.now();
        let idle = Occupancy { work_end: now, upload_end: now, used_bytes: 0, submits: 0 };
        let occupancies = machine.devices.iter().map(|_| Mutex::new(idle)).collect();
        let shared = Arc::new(Shared { facts: machine.devices, faults, clock, occupancies });
        Ok(Simulation { execution, shared })
    }

    /// A simulation of the machine that a TOML text describes.
    ///
    /// # Errors
    /// Not a valid description, or one that lacks bandwidth or compute of a device.
    pub fn described(text: &str, execution: Execution) -> Result<Simulation, Error> {
        Simulation::of(description::described(text)?, execution)
    }

    /// Changes the execution; clock, devices and memory stay shared.
    #[must_use]
    pub fn with(self, execution: Execution) -> Simulation {
        Simulation { execution, ..self }
    }

    /// Whether it computes.
    pub fn execution(&self) -> Execution {
        self.execution
    }

    /// The devices, the host first.
    pub fn devices(&self) -> &[Facts] {
        &self.shared.facts
    }

    /// The clock of all devices.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }
}

/// A device's access to what all its users share.
pub struct Port {
    simulation: Simulation,
    number: usize,
}

impl Port {
    /// That of the device of a number.
    pub fn new(simulation: Simulation, number: usize) -> Port {
        Port { simulation, number }
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        self.simulation.clock()
    }

    /// When the device fails.
    pub fn faults(&self) -> Faults {
        self.simulation.shared.faults[self.number]
    }

    /// What the device is doing.
    pub fn occupancy(&self) -> MutexGuard<'_, Occupancy> {
        let occupancy = &self.simulation.shared.occupancies[self.number];
        occupancy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
