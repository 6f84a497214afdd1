//! Flags of prices, and of `cost`.

use std::path::{Path, PathBuf};

use bilayer_measure::cost::{Rates, TokenPrices};
use bilayer_measure::power::POWERCAP;
use clap::Args;

use super::ModelArgs;

/// What the machine and its energy cost.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Prices")]
pub struct PriceArgs {
    /// Price of the machine per hour, as for a rented one
    #[arg(long, value_name = "PRICE", value_parser = amount, conflicts_with = "purchase")]
    pub price_per_hour: Option<f64>,
    /// Price of the machine if it was bought
    #[arg(long, value_name = "PRICE", value_parser = amount)]
    pub purchase: Option<f64>,
    /// Years for which a bought machine is used
    #[arg(long, value_name = "YEARS", default_value = "4", value_parser = positive)]
    #[arg(requires = "purchase")]
    pub lifetime: f64,
    /// Share of the time in which the machine works: its price is paid for all hours
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = share)]
    pub utilization: f64,
    /// Price of energy per kWh
    #[arg(long, value_name = "PRICE", value_parser = amount)]
    pub energy_price: Option<f64>,
    /// Power of the machine at work, in place of a measurement
    #[arg(long, value_name = "WATTS", value_parser = positive)]
    pub watts: Option<f64>,
    /// Folder of the energy counters (RAPL) [default: /sys/class/powercap]
    #[arg(long, value_name = "DIR")]
    pub powercap: Option<PathBuf>,
    /// Name of the currency, for the output
    #[arg(long, value_name = "NAME", default_value = "USD")]
    pub currency: String,
}

impl PriceArgs {
    /// Whether any price is given.
    pub fn is_given(&self) -> bool {
        self.price_per_hour.or(self.purchase).or(self.energy_price).is_some()
    }

    /// The folder of the energy counters.
    pub fn powercap(&self) -> &Path {
        self.powercap.as_deref().unwrap_or(Path::new(POWERCAP))
    }

    /// The rates at a measured power, watts.
    pub fn rates(&self, measured: Option<f64>) -> Rates {
        let bought = self.purchase.map(|price| Rates::of_purchase(price, self.lifetime));
        Rates {
            machine_hour: self.price_per_hour.or(bought).unwrap_or(0.0),
            utilization: self.utilization,
            watts: self.watts.or(measured),
            energy_kwh: self.energy_price.unwrap_or(0.0),
        }
    }
}

/// `bilayer cost`.
#[derive(Args, Debug)]
#[command(
    after_help = "Speeds are measured as `bench` does. Power is read from the energy counters, which cover the CPU and \
usually not its memory; many systems let only root read them. Without a price of the machine, only energy is counted."
)]
pub struct Cost {
    /// Tokens of a usual prompt
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub n_prompt: usize,
    /// Tokens of a usual answer; an encoder has none
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub n_gen: usize,
    /// Requests answered at once; short form -np
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=256))]
    pub parallel: usize,
    /// Repetitions of each measurement
    #[arg(short, long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Prices per million tokens of prompts and of answers that another offer has: says from how many requests on this
    /// machine costs less
    #[arg(long, value_name = "PROMPT,ANSWER", value_parser = offer)]
    pub against: Option<TokenPrices>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub prices: PriceArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// Parses a number that is not negative.
fn amount(given: &str) -> Result<f64, String> {
    let amount = given.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
    amount.ok_or_else(|| "it must be a number, 0 or more".to_owned())
}

fn positive(given: &str) -> Result<f64, String> {
    amount(given).ok().filter(|x| *x > 0.0).ok_or_else(|| "it must be a number above 0".to_owned())
}

/// Parses a share, from above 0 to 1.
pub fn share(given: &str) -> Result<f64, String> {
    let share = positive(given).ok().filter(|x| *x <= 1.0);
    share.ok_or_else(|| "it must be above 0 and at most 1, such as 0.9".to_owned())
}

fn offer(given: &str) -> Result<TokenPrices, String> {
    let parsed = given.split_once(',').and_then(|(prompt, generated)| {
        Some(TokenPrices { prompt: amount(prompt).ok()?, generated: amount(generated).ok()? })
    });
    parsed.ok_or_else(|| "it must be two prices such as 0.15,0.60".to_owned())
}
