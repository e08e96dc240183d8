//! The statistics of the guest's network: of the running engine, and of all engines before it.
//!
//! A restarted engine counts from zero. What the engine before it has published last is added to a sum in this process: so an
//! engine reads nothing that another one has written, and hits are assigned to rules here, where the rules are known.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use pontoon_engine::egress::{EgressRule, RefusedFlows};
use pontoon_process::error::{Context as _, Error};
use pontoon_worker::events::recorder::GENERATIONS;
use pontoon_worker::messages::RulesUpdate;
use pontoon_worker::stats::{Row, StatsTable};

use crate::policy;

/// The statistics and the egress rules. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Statistics(Rc<RefCell<State>>);

/// The number of matches of each rule, of destinations that no allow rule names, and of other resolvers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleHits {
    pub(crate) rules: Vec<(EgressRule, u64)>,
    pub(crate) unlisted: u64,
    pub(crate) resolvers: u64,
}

#[derive(Debug)]
struct State {
    table: StatsTable,
    rules: Vec<EgressRule>,
    /// The generation of `rules`.
    generation: u64,
    /// The latest generations of rules that [`Statistics::take_generations`] has not returned yet.
    recent: VecDeque<(u64, Vec<EgressRule>)>,
    /// The sum of ended engines' rows, for each worker.
    ended: Vec<Row>,
    /// The hits of ended engines.
    ended_hits: Hits,
    /// For each worker of the running engine the hits when the rules changed last. They count until the worker has published
    /// hits of the present rules, which contain those of rules that were not changed.
    before: Vec<Hits>,
}

/// Hits in the order of the rules, then the two counts after them.
type Hits = Vec<u64>;

impl Statistics {
    /// The generation of the rules at the start.
    pub(crate) const FIRST_GENERATION: u64 = 1;

    /// Statistics of engines that are forked from this process later and begin with `rules`.
    ///
    /// # Errors
    /// Out of memory or address space.
    pub(crate) fn open(workers: u8, rules: Vec<EgressRule>) -> Result<Self, Error> {
        let table = StatsTable::shared(workers, policy::MOST);
        let table = table.context("cannot allocate memory for the statistics")?;
        // Processes that are forked before the engine belong to the guest, and must not have this memory.
        table
            .set_inherited(false)
            .context("cannot withhold memory from child processes")?;
        Ok(Self::new(table, rules))
    }

    /// Statistics in `table`, of engines that begin with `rules`.
    pub(crate) fn new(table: StatsTable, rules: Vec<EgressRule>) -> Self {
        let workers = usize::from(table.workers());
        let none = vec![0; rules.len() + 2];
        Self(Rc::new(RefCell::new(State {
            table,
            recent: VecDeque::from([(Self::FIRST_GENERATION, rules.clone())]),
            rules,
            generation: Self::FIRST_GENERATION,
            ended: vec![Row::default(); workers],
            ended_hits: none.clone(),
            before: vec![none; workers],
        })))
    }

    /// Returns the rules that were set since the last call, with their generations; of more than [`GENERATIONS`] sets the
    /// latest.
    pub(crate) fn take_generations(&self) -> VecDeque<(u64, Vec<EgressRule>)> {
        std::mem::take(&mut self.0.borrow_mut().recent)
    }

    /// Returns the memory for the statistics of an engine.
    pub(crate) fn table(&self) -> StatsTable {
        self.0.borrow().table.clone()
    }

    /// Returns the number of workers of an engine.
    pub(crate) fn workers(&self) -> u8 {
        self.0.borrow().table.workers()
    }

    /// Returns the statistics of each worker.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let state = self.0.borrow();
        let total = |(worker, ended): (u8, &Row)| {
            let mut row = state.table.read(worker);
            row.add(ended);
            row
        };
        (0..).zip(&state.ended).map(total).collect()
    }

    /// Returns the hits of the egress rules in all workers.
    pub(crate) fn rule_hits(&self) -> RuleHits {
        let state = self.0.borrow();
        let mut hits = state.hits().into_iter();
        let rules = state.rules.iter().cloned().zip(hits.by_ref()).collect();
        RuleHits {
            rules,
            unlisted: hits.next().unwrap_or(0),
            resolvers: hits.next().unwrap_or(0),
        }
    }

    /// Replaces the rules; returns the update for the engine. Rules that stay keep their hits.
    pub(crate) fn set_rules(&self, rules: Vec<EgressRule>) -> RulesUpdate {
        let state = &mut *self.0.borrow_mut();
        let moves = Moves::new(&state.rules, &rules);
        state.before = (0..state.table.workers())
            .map(|worker| moves.apply(&state.of_worker(worker)))
            .collect();
        state.ended_hits = moves.apply(&state.ended_hits);
        state.generation += 1;
        state.rules.clone_from(&rules);
        while state.recent.len() >= GENERATIONS {
            state.recent.pop_front();
        }
        state.recent.push_back((state.generation, rules.clone()));
        RulesUpdate {
            generation: state.generation,
            rules,
            refused: RefusedFlows::Reset,
        }
    }

    /// Adds the statistics of the engine, which has exited, to those of the engines before it. Its gauges are zero from now on.
    pub(crate) fn end_engine(&self) {
        let state = &mut *self.0.borrow_mut();
        state.ended_hits = state.hits();
        state.before.iter_mut().for_each(|hits| hits.fill(0));
        for (worker, ended) in (0..).zip(&mut state.ended) {
            ended.add(&state.table.read(worker).ended());
        }
        state.table.clear();
    }
}

impl State {
    /// Returns the hits of the present rules in all workers of all engines.
    fn hits(&self) -> Hits {
        let mut sums = self.ended_hits.clone();
        for worker in 0..self.table.workers() {
            for (sum, hits) in sums.iter_mut().zip(self.of_worker(worker)) {
                *sum = sum.saturating_add(hits);
            }
        }
        sums
    }

    /// Returns the hits of the present rules in a worker of the running engine.
    fn of_worker(&self, worker: u8) -> Hits {
        let published = self.table.hits(worker, self.generation, self.rules.len());
        published.unwrap_or_else(|| {
            let before = self.before.get(usize::from(worker));
            before.cloned().unwrap_or_default()
        })
    }
}

/// For each count of the new rules the place of the same count before.
struct Moves(Vec<Option<usize>>);

impl Moves {
    fn new(old: &[EgressRule], new: &[EgressRule]) -> Self {
        let mut places = HashMap::new();
        for (place, rule) in old.iter().enumerate() {
            places.entry(rule.to_string()).or_insert(place);
        }
        let rules = new.iter().map(|rule| places.get(&rule.to_string()).copied());
        let beside = [Some(old.len()), Some(old.len() + 1)];
        Self(rules.chain(beside).collect())
    }

    fn apply(&self, hits: &[u64]) -> Hits {
        let hit = |place: &Option<usize>| place.and_then(|place| hits.get(place).copied());
        self.0.iter().map(|place| hit(place).unwrap_or(0)).collect()
    }
}

#[cfg(test)]
mod tests;
