//! Which tiles compute products of many columns: of those that are right, the ones that were measured to be the fastest.
//! What was measured is kept with the machine.

use crate::Error;
use crate::caps::{Caps, Tile};
use crate::device::{Device, DeviceOptions};
use crate::pipeline_cache::{Keep, name_of};
use crate::probe;
use crate::rate::{RATE_MIN, products};

/// Changes whenever there are other tiles to choose from, or they are measured otherwise.
const FORM: u32 = 3;

/// Rounds in which all tiles are measured on hardware; the better of a tile's rates counts. A GPU's clock rises and falls
/// meanwhile.
const ROUNDS: u32 = 2;

/// The tiles for a device and their operations per second, measured unless the keeper has them under the identity.
///
/// # Errors
/// All results are wrong, none is of the form that the options ask for, or the device was lost.
pub fn choose(
    device: &Device,
    options: DeviceOptions,
    kept: Option<(&dyn Keep, &str)>,
) -> Result<(Tile, f64), Error> {
    let caps = device.caps();
    // A software adapter has no tiles, and counts as the slowest: short dispatches cost it little.
    if caps.software {
        return Ok((caps.tile, RATE_MIN));
    }
    let mut tiles = caps.tiles();
    tiles.retain(|tile| options.tile.is_none_or(|wanted| tile.input == wanted));
    let kept = kept.filter(|_| options.tile.is_none());
    let name = |identity: &str| name_of("tiles", FORM, identity);
    if let Some((keeper, identity)) = kept
        && let Some(found) = keeper.load(&name(identity)).and_then(|text| read(&text, &tiles))
        && probe::check_tile(device, &Caps { tile: found.0, ..caps.clone() }).is_ok()
    {
        return Ok(found);
    }
    let adapter = device.name().to_owned();
    let Some(found) = fastest(device, &tiles)? else {
        let reason = "it computes no tiles of the form that is asked for".to_owned();
        return Err(Error::Open { adapter, reason });
    };
    if let Some((keeper, identity)) = kept {
        keeper.store(&name(identity), written(found).as_bytes());
    }
    Ok(found)
}

/// The fastest of those that compute right; `None` of none.
fn fastest(device: &Device, tiles: &[Tile]) -> Result<Option<(Tile, f64)>, Error> {
    let caps_of = |tile| Caps { tile, ..device.caps().clone() };
    let lost = |error: bilayer_graph::Error| Error::SelfCheck {
        adapter: device.name().to_owned(),
        reason: error.to_string(),
    };
    let (mut right, mut wrong) = (Vec::new(), None);
    for &tile in tiles {
        match probe::check_tile(device, &caps_of(tile)) {
            Ok(()) => right.push((tile, RATE_MIN)),
            Err(error) => wrong = Some(error),
        }
    }
    let Some(&(first, _)) = right.first() else { return wrong.map_or(Ok(None), Err) };
    let rounds = if device.is_hardware() { ROUNDS } else { 1 };
    if device.is_hardware() {
        products::warm_up(device, &caps_of(first)).map_err(lost)?;
    }
    for _ in 0..rounds {
        for (tile, rate) in &mut right {
            *rate = products::measure(device, &caps_of(*tile)).map_err(lost)?.max(*rate);
        }
    }
    Ok(fastest_of(&right))
}

/// The tile of the highest rate, the first of equals.
fn fastest_of(rates: &[(Tile, f64)]) -> Option<(Tile, f64)> {
    rates.iter().copied().reduce(|best, other| if other.1 > best.1 { other } else { best })
}

/// A line of the tile and its rate.
fn written((tile, rate): (Tile, f64)) -> String {
    format!("{tile} {rate:e}")
}

/// What [`written`] made of one of these tiles.
fn read(text: &[u8], tiles: &[Tile]) -> Option<(Tile, f64)> {
    let (tile, rate) = std::str::from_utf8(text).ok()?.rsplit_once(' ')?;
    let rate: f64 = rate.parse().ok().filter(|rate: &f64| rate.is_finite())?;
    let tile = tiles.iter().find(|known| known.to_string() == tile)?;
    Some((*tile, rate.max(RATE_MIN)))
}

#[cfg(test)]
mod tests {
    use super::{fastest_of, read, written};
    use crate::caps::{Input, Tile};

    #[test]
    fn what_is_kept_is_read_if_the_device_has_it() {
        let [coop, quantized] = [(Input::Halves, 128), (Input::Quantized, 64)]
            .map(|(input, rows)| Tile { input, rows, columns: 64 });
        let text = written((coop, 1.25e13));
        assert_eq!(text, "coop 128x64 1.25e13");
        assert_eq!(read(text.as_bytes(), &[quantized, coop]), Some((coop, 1.25e13)));
        assert_eq!(read(text.as_bytes(), &[quantized]), None, "of another device");
        for damaged in ["", "coop 128x64", "coop 128x64 inf", "coop 128x64 x"] {
            assert_eq!(read(damaged.as_bytes(), &[coop]), None, "{damaged}");
        }
        assert_eq!(read(b"q8 64x64 -3", &[quantized]), Some((quantized, 1e10)));
        assert_eq!(read(&[0xff], &[coop]), None);
    }

    #[test]
    fn the_fastest_tile_is_chosen_and_the_first_of_equals() {
        let tile = |rows| Tile { input: Input::Halves, rows, columns: 64 };
        let rates = [(tile(32), 1e12), (tile(64), 3e12), (tile(128), 3e12)];
        assert_eq!(fastest_of(&rates), Some((tile(64), 3e12)));
        assert_eq!(fastest_of(&[]), None);
    }
}
