//! A model divided between two simulated devices, whose clock moves with their work alone.

use bilayer_engine::Model;
use bilayer_engine::placement::{Execution, Placing, Simulation};
use bilayer_engine::session::{Session, Settings};
use bilayer_graph::{Backend, Graph};
use bilayer_scheduler::{Budget, Machine, Offload, OpOffload, Times};

/// A CPU and a GPU so slow that nothing but their work takes time; half of the tiny model takes both as long for one row.
const MACHINE: &str = r#"
[cpu]
name = "c"
memory = "128GiB"
read_gbps = 60e-6
tops = 2e-6
submit_us = 5
kernel_us = 2

[gpu]
name = "g"
memory = "24GiB"
read_gbps = 38e-6
tops = 0.71e-6
upload_gbps = 25
download_gbps = 25
submit_us = 20
kernel_us = 4
wait_us = 20
"#;

/// A session with half of the model's layers on each device, and the times that their description leads to.
pub fn halves(model: &Model, settings: Settings) -> Session {
    let placing = Placing {
        gpu_layers: Offload::Count(1 + model.graph().layers() / 2),
        op_offload: OpOffload::Never,
        ..Placing::default()
    };
    let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
        let times = Times::estimated(graph, machine);
        placing.plan(graph, &Machine { times, ..machine.clone() }, budget)
    };
    let machine = Simulation::described(MACHINE, Execution::ScheduleOnly).unwrap();
    let device = |number| -> Box<dyn Backend> { Box::new(machine.device(number, None)) };
    Session::on(model, vec![device(0), device(1)], &planner, settings).unwrap()
}
