//! How attention of many rows is computed: with cooperative matrices where they are right and were measured to be faster. What
//! was measured is kept with the machine.

use bilayer_graph::Error as GraphError;

use crate::caps::Caps;
use crate::device::Device;
use crate::pipeline_cache::{Keep, name_of};
use crate::rate::attention::{GROUP, key, measure};
use crate::rate::{AttentionRates, RATE_MIN, products};

/// Changes whenever the kernels do, or they are measured otherwise.
const FORM: u32 = 1;

/// Rounds in which all kernels are measured on hardware; the better of a kernel's rates counts.
const ROUNDS: u32 = 2;

/// Less than this is not taken for measured.
const ATTENTION_MIN: f64 = RATE_MIN / 100.0;

/// What is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChosenAttention {
    /// Whether cooperative matrices compute attention of many rows.
    pub coop: bool,
    /// Its rates.
    pub rates: AttentionRates,
}

/// The attention for a device, measured unless the keeper has it under the identity; `None` if it cannot be measured, such as
/// for want of memory.
///
/// # Errors
/// The device was lost.
pub fn choose(
    device: &Device,
    kept: Option<(&dyn Keep, &str)>,
) -> Result<Option<ChosenAttention>, GraphError> {
    let name = |identity: &str| name_of("attention", FORM, identity);
    let loaded = kept.and_then(|(keeper, identity)| keeper.load(&name(identity)));
    if let Some(choice) = loaded.and_then(|text| read(&text, device.caps())) {
        return Ok(Some(choice));
    }
    let choice = fastest(device)?;
    if let (Some((keeper, identity)), Some(choice)) = (kept, choice) {
        keeper.store(&name(identity), written(choice).as_bytes());
    }
    Ok(choice)
}

/// The rates of attention by the kernels that `caps` choose; `None` if they cannot be measured.
///
/// # Errors
/// The device was lost.
pub(crate) fn rates(device: &Device, caps: &Caps) -> Result<Option<AttentionRates>, GraphError> {
    let Some(base) = key() else { return Ok(None) };
    let mut rates = [None; 2];
    for (rate, key) in rates.iter_mut().zip([base.tiled(caps, GROUP, 1), base.many(caps, GROUP)]) {
        *rate = match measure(device, caps, &key) {
            Ok(rate) => Some(rate.max(ATTENTION_MIN)),
            Err(_) => {
                device.check()?;
                None
            }
        };
    }
    let [single, tiled] = rates;
    Ok(single.zip(tiled).map(|(single, tiled)| AttentionRates { single, tiled }))
}

/// The faster of attention with cooperative matrices, if the device has it, and without.
fn fastest(device: &Device) -> Result<Option<ChosenAttention>, GraphError> {
    let with = device.caps();
    let without = Caps { coop_attends: false, ..with.clone() };
    let rounds = if device.is_hardware() { ROUNDS } else { 1 };
    if device.is_hardware() && products::warm_up(device, with).is_err() {
        device.check()?;
        return Ok(None);
    }
    let is_coop = |caps: &Caps| key().is_some_and(|base| base.many(caps, GROUP).coop.is_some());
    let forms = if is_coop(with) { vec![with, &without] } else { vec![&without] };
    let mut best: Option<ChosenAttention> = None;
    for caps in forms {
        let mut found: Option<AttentionRates> = None;
        for _ in 0..rounds {
            let Some(rates) = rates(device, caps)? else { break };
            found = Some(found.map_or(rates, |found| found.max(rates)));
        }
        let Some(rates) = found else { continue };
        if best.is_none_or(|best| rates.tiled > best.rates.tiled) {
            best = Some(ChosenAttention { coop: is_coop(caps), rates });
        }
    }
    Ok(best)
}

/// A line of the kernel and the rates.
fn written(ChosenAttention { coop, rates }: ChosenAttention) -> String {
    let kernel = if coop { "coop" } else { "split" };
    format!("{kernel} {:e} {:e}", rates.single, rates.tiled)
}

/// What [`written`] made of a choice that these capabilities have.
fn read(text: &[u8], caps: &Caps) -> Option<ChosenAttention> {
    let mut words = std::str::from_utf8(text).ok()?.split(' ');
    let coop = match words.next()? {
        "coop" => true,
        "split" => false,
        _ => return None,
    };
    let mut rate = || {
        let rate: f64 = words.next()?.parse().ok()?;
        rate.is_finite().then_some(rate.max(ATTENTION_MIN))
    };
    let rates = AttentionRates { single: rate()?, tiled: rate()? };
    let is_possible = !coop || key()?.tiled_coop(caps, GROUP).is_some();
    (words.next().is_none() && is_possible).then_some(ChosenAttention { coop, rates })
}

#[cfg(test)]
mod tests {
    use super::{ChosenAttention, read, written};
    use crate::caps::{Caps, Coop, Input, Tile};
    use crate::profiles::CARD;
    use crate::rate::AttentionRates;

    #[test]
    fn what_is_kept_is_read_if_the_device_has_the_kernel() {
        let coop = Caps {
            coop: Some(Coop { edge: 16, subgroup: 32 }),
            tile: Tile { input: Input::Halves, rows: 64, columns: 64 },
            workgroup_bytes: 48 << 10,
            ..CARD
        };
        let rates = AttentionRates { single: 1.5e12, tiled: 2e13 };
        let [with, without] = [true, false].map(|coop| ChosenAttention { coop, rates });
        assert_eq!(written(with), "coop 1.5e12 2e13");
        assert_eq!(read(written(with).as_bytes(), &coop), Some(with));
        assert_eq!(read(written(with).as_bytes(), &CARD), None, "it multiplies no matrices");
        for caps in [&coop, &CARD] {
            assert_eq!(read(written(without).as_bytes(), caps), Some(without));
        }
        for damaged in ["", "coop", "split 1e12", "split 1e12 inf", "split 1e12 2e12 3e12", "x 1 2"]
        {
            assert_eq!(read(damaged.as_bytes(), &coop), None, "{damaged}");
        }
        let slow = AttentionRates { single: 1e8, tiled: 1e8 };
        assert_eq!(read(b"split -1 0", &CARD), Some(ChosenAttention { coop: false, rates: slow }));
    }
}
