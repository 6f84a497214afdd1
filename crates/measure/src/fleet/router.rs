//! Which replica a request is sent to.

use std::collections::HashMap;

use bilayer_files::hash::{FNV_START, fnv_from};
use serde::{Deserialize, Serialize};

use super::{Fleet, Replica, Request};

/// How requests are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Router {
    /// In turn, whatever they have.
    RoundRobin,
    /// To the replica with the fewest requests, as balancers do with least connections.
    LeastRequests,
    /// To the replica that had the longest beginning of the prompt; a replica with more than `sequences` requests above the
    /// least loaded one is passed over. The rule of `bilayer.ray`.
    #[default]
    Prefix,
}

/// Tokens of a block of a prompt whose replicas are remembered: about 256 characters.
const BLOCK: usize = 64;

/// What a router remembers.
pub(super) struct Routing {
    router: Router,
    spill: usize,
    turn: usize,
    /// The replicas that were sent a block, by a hash of all blocks up to it, latest last.
    sent: HashMap<u64, Vec<usize>>,
}

/// Replicas that are remembered for a block.
const REMEMBERED: usize = 16;

impl Routing {
    pub fn new(fleet: &Fleet) -> Routing {
        Routing { router: fleet.router, spill: fleet.sequences, turn: 0, sent: HashMap::new() }
    }

    /// Chooses the replica of a request.
    pub fn choose(&mut self, request: &Request, replicas: &[Replica]) -> usize {
        self.turn = (self.turn + 1) % replicas.len();
        if self.router == Router::RoundRobin {
            return self.turn;
        }
        // Among equals the one that is next in turn.
        let from = self.turn;
        let order = (0..replicas.len()).map(|step| (from + step) % replicas.len());
        let least = order.min_by_key(|&at| replicas[at].requests()).expect("there is a replica");
        if self.router == Router::LeastRequests {
            return least;
        }
        let most = replicas[least].requests() + self.spill;
        let hashes = chain(&request.prompt);
        let known = hashes.iter().rev().find_map(|hash| {
            let sent = self.sent.get(hash)?.iter().rev();
            sent.copied()
                .filter(|&at| replicas[at].requests() <= most)
                .min_by_key(|&at| replicas[at].requests())
        });
        let chosen = known.unwrap_or(least);
        for hash in hashes {
            let sent = self.sent.entry(hash).or_default();
            sent.retain(|&at| at != chosen);
            if sent.len() == REMEMBERED {
                sent.remove(0);
            }
            sent.push(chosen);
        }
        chosen
    }
}

/// A hash (FNV-1a) for each whole block, which depends on all tokens before it.
fn chain(tokens: &[u32]) -> Vec<u64> {
    let mut hash = FNV_START;
    let mut hashes = Vec::with_capacity(tokens.len() / BLOCK);
    for block in tokens.chunks_exact(BLOCK) {
        for token in block {
            hash = fnv_from(hash, &token.to_le_bytes());
        }
        hashes.push(hash);
    }
    hashes
}
