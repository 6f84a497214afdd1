//! What tokens cost on a machine: its price while it computes, and its energy.
//!
//! A machine costs money whether it works or not, so its price is divided by the share of time in which it does. Energy is
//! counted for the time of the work only.

use serde::Serialize;

/// Hours of a year.
pub const YEAR_HOURS: f64 = 365.25 * 24.0;

/// Tokens by which prices are given.
const MILLION: f64 = 1e6;

/// What a machine and its energy cost, in one currency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Price of the machine per hour, at work or not.
    pub machine_hour: f64,
    /// Share of the time in which it works, above 0 and at most 1.
    pub utilization: f64,
    /// Power while it works, watts; `None` if unknown, and then energy is left out.
    pub watts: Option<f64>,
    /// Price of energy, per kWh.
    pub energy_kwh: f64,
}

impl Rates {
    /// The price per hour of a machine that was bought and is used for so many years.
    pub fn of_purchase(price: f64, years: f64) -> f64 {
        price / (years * YEAR_HOURS)
    }

    /// Price of an hour of work: the machine's, idle time included, and the energy's.
    pub fn hour(&self) -> f64 {
        self.machine_hour / self.utilization + self.energy_hour()
    }

    /// Price of the energy of an hour of work.
    pub fn energy_hour(&self) -> f64 {
        self.watts.unwrap_or(0.0) / 1e3 * self.energy_kwh
    }

    /// Price of a million tokens at a speed in tokens per second.
    pub fn million(&self, tokens_per_second: f64) -> f64 {
        self.hour() / 3600.0 * MILLION / tokens_per_second
    }

    /// Joules of a token at a speed in tokens per second; `None` if power is unknown.
    pub fn joules(&self, tokens_per_second: f64) -> Option<f64> {
        self.watts.map(|watts| watts / tokens_per_second)
    }
}

/// A request as it is usual: so many tokens of prompt and answer, and the speed of each, tokens per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens of an answer.
    pub generated: usize,
    /// Speed of prompts.
    pub prompt_tps: f64,
    /// Speed of answers, over all sequences.
    pub generated_tps: f64,
}

/// What someone else asks for tokens, per million.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TokenPrices {
    /// Of prompts.
    pub prompt: f64,
    /// Of answers.
    pub generated: f64,
}

/// Where a machine costs as much as an offer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BreakEven {
    /// Price of a request on the machine, at its utilization.
    pub own_request: f64,
    /// Price of a request by the offer.
    pub offered_request: f64,
    /// Most requests that the machine answers in a day.
    pub capacity_day: f64,
    /// Requests per day from which on the machine costs less; `None` if it never does, even when always at work.
    pub requests_day: Option<f64>,
    /// Those requests as a share of the machine's time.
    pub utilization: Option<f64>,
}

impl Workload {
    /// Seconds of work per request; of sequences that run together, each one's share.
    pub fn seconds(&self) -> f64 {
        let part = |tokens: usize, tps: f64| if tokens == 0 { 0.0 } else { tokens as f64 / tps };
        part(self.prompt, self.prompt_tps) + part(self.generated, self.generated_tps)
    }

    /// Compares the machine with an offer.
    pub fn break_even(&self, rates: &Rates, offer: &TokenPrices) -> BreakEven {
        let seconds = self.seconds();
        let offered_request =
            (self.prompt as f64 * offer.prompt + self.generated as f64 * offer.generated) / MILLION;
        let capacity_day = 86400.0 / seconds;
        // The machine's price is paid in any case; a request adds energy and saves the offer's price.
        let saved = offered_request - rates.energy_hour() / 3600.0 * seconds;
        let needed = 24.0 * rates.machine_hour / saved;
        let requests_day = (saved > 0.0 && needed <= capacity_day).then_some(needed);
        BreakEven {
            own_request: rates.hour() / 3600.0 * seconds,
            offered_request,
            capacity_day,
            requests_day,
            utilization: requests_day.map(|requests| requests / capacity_day),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_cost_the_machine_and_its_energy() {
        let rates =
            Rates { machine_hour: 0.36, utilization: 0.5, watts: Some(100.0), energy_kwh: 0.3 };
        // 0.72 for the machine and 0.03 for energy in an hour, in which 36000 tokens are made.
        assert!((rates.hour() - 0.75).abs() < 1e-12);
        assert!((rates.million(10.0) - 0.75 / 0.036).abs() < 1e-9);
        assert_eq!(rates.joules(10.0), Some(10.0));
        let unknown = Rates { watts: None, ..rates };
        assert_eq!((unknown.hour(), unknown.joules(10.0)), (0.72, None));
        assert!((Rates::of_purchase(8766.0, 2.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_machine_breaks_even_at_a_number_of_requests_or_never() {
        let rates =
            Rates { machine_hour: 0.1, utilization: 1.0, watts: Some(360.0), energy_kwh: 1.0 };
        let workload =
            Workload { prompt: 100, generated: 10, prompt_tps: 100.0, generated_tps: 10.0 };
        // Two seconds of work: energy of 0.0002; the offer asks 0.0022.
        let offer = TokenPrices { prompt: 2.0, generated: 200.0 };
        let found = workload.break_even(&rates, &offer);
        assert!((found.offered_request - 0.0022).abs() < 1e-12);
        assert!((found.requests_day.expect("reached") - 2.4 / 0.002).abs() < 1e-6);
        assert!((found.utilization.expect("reached") - 1200.0 / 43200.0).abs() < 1e-9);
        // At that number both cost the same.
        let requests = found.requests_day.expect("reached");
        let own = 24.0 * rates.machine_hour + requests * 2.0 * rates.energy_hour() / 3600.0;
        assert!((own - requests * found.offered_request).abs() < 1e-9);
        let cheap = TokenPrices { prompt: 0.01, generated: 0.02 };
        assert_eq!(workload.break_even(&rates, &cheap).requests_day, None);
        let empty = Workload { generated: 0, generated_tps: 0.0, ..workload };
        assert_eq!(empty.seconds(), 1.0);
    }
}
