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
    /// Power while it works, watts; `None` if unknown. Then there is no price of work, unless energy has none.
    pub watts: Option<f64>,
    /// Price of energy, per kWh.
    pub energy_kwh: f64,
}

impl Rates {
    /// The price per hour of a machine that was bought and is used for so many years.
    pub fn of_purchase(price: f64, years: f64) -> f64 {
        price / (years * YEAR_HOURS)
    }

    /// Price of an hour of work: the machine's, idle time included, and the energy's. `None` as of [`Rates::energy_hour`].
    pub fn hour(&self) -> Option<f64> {
        Some(self.machine_hour / self.utilization + self.energy_hour()?)
    }

    /// Price of the energy of an hour of work; `None` if energy has a price and power is unknown.
    pub fn energy_hour(&self) -> Option<f64> {
        if self.energy_kwh == 0.0 {
            return Some(0.0);
        }
        Some(self.watts? / 1e3 * self.energy_kwh)
    }

    /// Price of a million tokens at a speed in tokens per second; `None` as of [`Rates::energy_hour`].
    pub fn million(&self, tokens_per_second: f64) -> Option<f64> {
        Some(self.hour()? / 3600.0 * MILLION / tokens_per_second)
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

impl BreakEven {
    /// Whether a request costs as much on the machine as by the offer, however many there are: the machine itself is free.
    pub fn is_equal(&self) -> bool {
        self.requests_day.is_none() && self.own_request <= self.offered_request
    }
}

impl Workload {
    /// Seconds of work per request; of sequences that run together, each one's share.
    pub fn seconds(&self) -> f64 {
        self.parts().iter().sum()
    }

    /// Seconds of work for a request's prompt and for its answer.
    fn parts(&self) -> [f64; 2] {
        let part = |tokens: usize, tps: f64| if tokens == 0 { 0.0 } else { tokens as f64 / tps };
        [part(self.prompt, self.prompt_tps), part(self.generated, self.generated_tps)]
    }

    /// Price of the energy of a request, at the rates while prompts run and while answers are generated; `None` if energy has a
    /// price and the power of either is unknown.
    fn energy(&self, rates: &[Rates; 2]) -> Option<f64> {
        let parts = rates.iter().zip(self.parts());
        parts.map(|(rates, seconds)| Some(rates.energy_hour()? / 3600.0 * seconds)).sum()
    }

    /// Price of an hour of such requests, and the part of it that is energy; the rates are those of prompts and of answers.
    /// `None` if energy has a price and the power of either is unknown.
    pub fn hour(&self, rates: &[Rates; 2]) -> Option<(f64, f64)> {
        let energy = self.energy(rates)? * 3600.0 / self.seconds();
        Some((rates[0].machine_hour / rates[0].utilization + energy, energy))
    }

    /// Price of a request, at the rates while prompts run and while answers are generated; `None` as of [`Workload::hour`].
    pub fn price(&self, rates: &[Rates; 2]) -> Option<f64> {
        Some(self.hour(rates)?.0 / 3600.0 * self.seconds())
    }

    /// Compares the machine with an offer; the rates are those while prompts run and while answers are generated. `None` as of
    /// [`Workload::hour`].
    pub fn break_even(&self, rates: &[Rates; 2], offer: &TokenPrices) -> Option<BreakEven> {
        let seconds = self.seconds();
        let offered_request =
            (self.prompt as f64 * offer.prompt + self.generated as f64 * offer.generated) / MILLION;
        let capacity_day = 86400.0 / seconds;
        // The machine's price is paid in any case; a request adds energy and saves the offer's price.
        let saved = offered_request - self.energy(rates)?;
        let needed = 24.0 * rates[0].machine_hour / saved;
        let requests_day = (saved > 0.0 && needed <= capacity_day).then_some(needed);
        Some(BreakEven {
            own_request: self.price(rates)?,
            offered_request,
            capacity_day,
            requests_day,
            utilization: requests_day.map(|requests| requests / capacity_day),
        })
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
        assert!((rates.hour().expect("known") - 0.75).abs() < 1e-12);
        assert!((rates.million(10.0).expect("known") - 0.75 / 0.036).abs() < 1e-9);
        assert_eq!(rates.joules(10.0), Some(10.0));
        let unknown = Rates { watts: None, ..rates };
        assert_eq!(
            (unknown.hour(), unknown.million(10.0), unknown.joules(10.0)),
            (None, None, None)
        );
        assert_eq!(Rates { energy_kwh: 0.0, ..unknown }.hour(), Some(0.72));
        assert!((Rates::of_purchase(8766.0, 2.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn prompts_and_answers_have_their_own_power() {
        let of = |watts: f64| Rates {
            machine_hour: 0.36,
            utilization: 0.5,
            watts: Some(watts),
            energy_kwh: 1.0,
        };
        // Three seconds at 400 W, and one at 100 W: 1300 J, or 325 W on average.
        let workload =
            Workload { prompt: 300, generated: 10, prompt_tps: 100.0, generated_tps: 10.0 };
        let rates = [of(400.0), of(100.0)];
        let (hour, energy) = workload.hour(&rates).expect("known");
        assert!((energy - 0.325).abs() < 1e-12 && (hour - 1.045).abs() < 1e-12, "{hour} {energy}");
        let price = workload.price(&rates).expect("known");
        assert!((price - 1.045 / 900.0).abs() < 1e-12);
        let offer = TokenPrices { prompt: 10.0, generated: 10.0 };
        let found = workload.break_even(&rates, &offer).expect("known");
        assert!((found.own_request - price).abs() < 1e-12);
        let saved = 0.0031 - 0.325 / 900.0;
        assert!((found.requests_day.expect("reached") - 24.0 * 0.36 / saved).abs() < 1e-6);
        // The energy of neither part is nothing because its power is unknown, unless energy is free.
        let unknown = Rates { watts: None, ..of(0.0) };
        for rates in [[unknown, of(100.0)], [of(400.0), unknown]] {
            assert_eq!((workload.hour(&rates), workload.price(&rates)), (None, None));
            assert_eq!(workload.break_even(&rates, &offer), None);
            let free = rates.map(|rates| Rates { energy_kwh: 0.0, ..rates });
            assert_eq!(workload.hour(&free), Some((0.72, 0.0)));
        }
    }

    #[test]
    fn a_machine_breaks_even_at_a_number_of_requests_or_never() {
        let rates =
            Rates { machine_hour: 0.1, utilization: 1.0, watts: Some(360.0), energy_kwh: 1.0 };
        let workload =
            Workload { prompt: 100, generated: 10, prompt_tps: 100.0, generated_tps: 10.0 };
        // Two seconds of work: energy of 0.0002; the offer asks 0.0022.
        let offer = TokenPrices { prompt: 2.0, generated: 200.0 };
        let alike = [rates; 2];
        let even = |rates: &[Rates; 2], offer| workload.break_even(rates, offer).expect("known");
        let found = even(&alike, &offer);
        assert!((found.offered_request - 0.0022).abs() < 1e-12);
        assert!((found.requests_day.expect("reached") - 2.4 / 0.002).abs() < 1e-6);
        assert!((found.utilization.expect("reached") - 1200.0 / 43200.0).abs() < 1e-9);
        // At that number both cost the same.
        let requests = found.requests_day.expect("reached");
        let own = 24.0 * rates.machine_hour + requests * 2.0 * 0.36 / 3600.0;
        assert!((own - requests * found.offered_request).abs() < 1e-9);
        let cheap = TokenPrices { prompt: 0.01, generated: 0.02 };
        let never = even(&alike, &cheap);
        assert!(never.requests_day.is_none() && !never.is_equal());
        // A machine that costs nothing: from the first request on, never, or no difference.
        let free = Rates { machine_hour: 0.0, energy_kwh: 0.0, ..rates };
        let nothing = TokenPrices { prompt: 0.0, generated: 0.0 };
        assert_eq!(even(&[free; 2], &offer).requests_day, Some(0.0));
        assert!(even(&[free; 2], &nothing).is_equal());
        assert!(!even(&alike, &nothing).is_equal());
        let empty = Workload { generated: 0, generated_tps: 0.0, ..workload };
        assert_eq!(empty.seconds(), 1.0);
    }
}
