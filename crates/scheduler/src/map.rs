//! Reads the map of a placement as a plan prints it: `out:gpu 31-12:gpu 11-0:cpu`.

use std::ops::RangeInclusive;

/// The family of the host in labels of devices.
const HOST: &str = "cpu";

/// Which devices a part of a model, or all of it, is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    /// The host.
    Host,
    /// Others.
    Offload,
    /// The host and others.
    Both,
}

impl Devices {
    /// Those of a label such as `cpu`, `gpu1` or `gpu+cpu`.
    fn of(label: &str) -> Devices {
        let is_host = |name: &str| name.trim_end_matches(|c: char| c.is_ascii_digit()) == HOST;
        let mut all = label.split('+').map(|name| match is_host(name) {
            true => Devices::Host,
            false => Devices::Offload,
        });
        let first = all.next().unwrap_or(Devices::Host);
        all.fold(first, Devices::and)
    }

    fn and(self, other: Devices) -> Devices {
        if self == other { self } else { Devices::Both }
    }
}

/// Neighbours in a map that are on the same devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapRun {
    /// The layers; `None` is the output head.
    pub layers: Option<RangeInclusive<u32>>,
    /// Their devices.
    pub devices: Devices,
}

/// The runs of a map, from the last to the first layer; `None` if the text is no map.
pub fn runs(map: &str) -> Option<Vec<MapRun>> {
    let run = |run: &str| {
        let (names, label) = run.split_once(':')?;
        let layers = match names.split_once('-').unwrap_or((names, names)) {
            ("out", "out") => None,
            (last, first) => Some(first.parse().ok()?..=last.parse().ok()?),
        };
        Some(MapRun { layers, devices: Devices::of(label) })
    };
    map.split_whitespace().map(run).collect()
}

/// The devices of a whole map; `None` if the text is no map, or empty.
pub fn devices(map: &str) -> Option<Devices> {
    runs(map)?.into_iter().map(|run| run.devices).reduce(Devices::and)
}

#[cfg(test)]
mod tests {
    use super::{Devices, MapRun, devices, runs};
    use crate::Placement;

    #[test]
    fn a_map_that_was_printed_is_read() {
        let labels = ["cpu", "gpu0", "gpu1"].map(str::to_owned);
        let run = |layers, devices| MapRun { layers, devices };
        let map = Placement::split(6, 0, &[(1, 2), (2, 2)]).map(&labels);
        assert_eq!(map, "out:gpu1 5:gpu1 4-3:gpu0 2-0:cpu");
        let expected = [
            run(None, Devices::Offload),
            run(Some(5..=5), Devices::Offload),
            run(Some(3..=4), Devices::Offload),
            run(Some(0..=2), Devices::Host),
        ];
        assert_eq!(runs(&map).as_deref(), Some(&expected[..]));
        for (map, expected) in [
            (&*map, Some(Devices::Both)),
            ("out:gpu 3-0:gpu", Some(Devices::Offload)),
            ("out:cpu 3-0:cpu", Some(Devices::Host)),
            ("out:cpu 3:gpu+cpu 2-0:cpu", Some(Devices::Both)),
            ("", None),
            ("unknown", None),
        ] {
            assert_eq!(devices(map), expected, "{map}");
        }
    }
}
