//! Judges a history: all or nothing, and strictly serializable.
//!
//! What one transaction saw of another puts them in an order: an append comes before the next one to the
//! same list, before every read that shows it, and after every read that does not show it yet; what was
//! acknowledged before something was asked comes before that. If these orders have a circle, no order of the
//! transactions explains what clients saw (Adya, 1999; Elle, 2020).
//!
//! Never: it looks for an order. That there is no circle proves that there is one.

use super::history::{Outcome, Step, Transaction};
use std::collections::BTreeMap;

/// Who appended a word.
type Authors = BTreeMap<u64, usize>;

/// Judges a history by what the lists hold at the end.
///
/// # Errors
/// What cannot be.
pub(super) fn judge(history: &[Transaction], lists: &[Vec<u64>]) -> Result<(), String> {
    let authors = authors(history);
    all_or_nothing(history, lists, &authors)?;
    let reads = reads_are_prefixes(history, lists)?;
    let mut graph = Graph::new(history.len() + 2 * history.len());
    order_by_lists(&mut graph, lists, &authors);
    order_by_reads(&mut graph, &reads, lists, &authors);
    order_by_time(&mut graph, history);
    match graph.circle() {
        None => Ok(()),
        Some(circle) => Err(explain(history, &circle)),
    }
}

fn authors(history: &[Transaction]) -> Authors {
    let mut authors = Authors::new();
    for (number, transaction) in history.iter().enumerate() {
        for step in &transaction.steps {
            if let Step::Append { word, .. } = step {
                assert!(authors.insert(*word, number).is_none(), "a word is appended once");
            }
        }
    }
    authors
}

/// Every word that was acknowledged is there once; of a transaction all are there or none.
fn all_or_nothing(history: &[Transaction], lists: &[Vec<u64>], authors: &Authors) -> Result<(), String> {
    let mut found: Vec<usize> = vec![0; history.len()];
    for (list, words) in lists.iter().enumerate() {
        for word in words {
            let author = authors
                .get(word)
                .ok_or_else(|| format!("list {list} holds {word}, which nobody appended"))?;
            let appended = Step::Append { list, word: *word };
            if !history[*author].steps.contains(&appended) {
                return Err(format!("list {list} holds {word}, which was appended to another"));
            }
            found[*author] += 1;
        }
        let mut sorted = words.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(format!("list {list} holds a word twice: {words:?}"));
        }
    }
    for (number, (transaction, found)) in history.iter().zip(&found).enumerate() {
        let appends = transaction.steps.iter().filter(|step| matches!(step, Step::Append { .. })).count();
        let fits = match transaction.outcome {
            Outcome::Done => *found == appends,
            Outcome::Refused => *found == 0,
            Outcome::Unknown => *found == 0 || *found == appends,
        };
        if !fits {
            return Err(format!("{found} of {appends} appends of #{number} are there: {transaction:?}"));
        }
    }
    Ok(())
}

/// What a transaction read before it appended anything to the same list: the list and how many words.
struct Seen {
    reader: usize,
    list: usize,
    count: usize,
}

/// Every list that was read is the beginning of what it came to be, but for words of the reader.
fn reads_are_prefixes(history: &[Transaction], lists: &[Vec<u64>]) -> Result<Vec<Seen>, String> {
    let mut seen = Vec::new();
    for (reader, transaction) in history.iter().enumerate() {
        if transaction.outcome != Outcome::Done {
            continue;
        }
        let mut own: Vec<(usize, u64)> = Vec::new();
        for step in &transaction.steps {
            match step {
                Step::Append { list, word } => own.push((*list, *word)),
                Step::Read { list, words } => {
                    let mine: Vec<u64> =
                        own.iter().filter(|(of, _)| of == list).map(|(_, word)| *word).collect();
                    let Some(others) = words.strip_suffix(mine.as_slice()) else {
                        return Err(format!("#{reader} did not see its own appends: {transaction:?}"));
                    };
                    if !lists[*list].starts_with(others) {
                        let end = &lists[*list];
                        return Err(format!(
                            "#{reader} saw {others:?} in list {list}, which came to be {end:?}: {transaction:?}"
                        ));
                    }
                    seen.push(Seen { reader, list: *list, count: others.len() });
                }
            }
        }
    }
    Ok(seen)
}

fn order_by_lists(graph: &mut Graph, lists: &[Vec<u64>], authors: &Authors) {
    for words in lists {
        for pair in words.windows(2) {
            graph.order(authors[&pair[0]], authors[&pair[1]]);
        }
    }
}

fn order_by_reads(graph: &mut Graph, reads: &[Seen], lists: &[Vec<u64>], authors: &Authors) {
    for Seen { reader, list, count } in reads {
        let words = &lists[*list];
        if let Some(last) = count.checked_sub(1) {
            graph.order(authors[&words[last]], *reader);
        }
        if let Some(next) = words.get(*count) {
            graph.order(*reader, authors[next]);
        }
    }
}

/// Instants stand in a row; each transaction comes after the instant at which it was asked and before that
/// at which it was acknowledged.
fn order_by_time(graph: &mut Graph, history: &[Transaction]) {
    let mut events: Vec<(u64, usize, bool)> = Vec::new();
    for (number, transaction) in history.iter().enumerate() {
        events.push((transaction.invoked, number, true));
        if let (Outcome::Done, Some(completed)) = (transaction.outcome, transaction.completed) {
            events.push((completed, number, false));
        }
    }
    events.sort_unstable();
    for (place, (_, number, begins)) in events.iter().enumerate() {
        let instant = history.len() + place;
        if place > 0 {
            graph.order(instant - 1, instant);
        }
        if *begins {
            graph.order(instant, *number);
        } else {
            graph.order(*number, instant);
        }
    }
}

/// Who comes before whom.
struct Graph {
    after: Vec<Vec<usize>>,
}

impl Graph {
    fn new(nodes: usize) -> Graph {
        Graph { after: vec![Vec::new(); nodes] }
    }

    fn order(&mut self, first: usize, second: usize) {
        if first != second {
            self.after[first].push(second);
        }
    }

    /// Nodes of a circle, if there is one.
    fn circle(&self) -> Option<Vec<usize>> {
        let mut before = vec![0_usize; self.after.len()];
        self.after.iter().flatten().for_each(|second| before[*second] += 1);
        let mut free: Vec<usize> = (0..before.len()).filter(|node| before[*node] == 0).collect();
        while let Some(node) = free.pop() {
            for second in &self.after[node] {
                before[*second] -= 1;
                if before[*second] == 0 {
                    free.push(*second);
                }
            }
        }
        // Every node that is left has one before it that is left: going back ends in a circle.
        let left = |node: &usize| before[*node] > 0;
        let mut node = (0..before.len()).find(left)?;
        let mut way = vec![node];
        loop {
            node = (0..before.len()).find(|first| left(first) && self.after[*first].contains(&node))?;
            if let Some(start) = way.iter().position(|passed| *passed == node) {
                let mut circle = way.split_off(start);
                circle.reverse();
                return Some(circle);
            }
            way.push(node);
        }
    }
}

fn explain(history: &[Transaction], circle: &[usize]) -> String {
    let transactions = circle.iter().filter(|node| **node < history.len());
    let told: Vec<String> = transactions.map(|number| format!("#{number} {:?}", history[*number])).collect();
    format!(
        "no order explains what these saw, each before the next and the last before the first: {}",
        told.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(invoked: u64, completed: u64, steps: Vec<Step>) -> Transaction {
        Transaction { client: 0, invoked, completed: Some(completed), outcome: Outcome::Done, steps }
    }

    fn append(list: usize, word: u64) -> Step {
        Step::Append { list, word }
    }

    fn read(list: usize, words: &[u64]) -> Step {
        Step::Read { list, words: words.to_vec() }
    }

    #[test]
    fn what_one_after_the_other_would_give_is_accepted() {
        let history = [
            done(1, 2, vec![append(0, 10), append(1, 11)]),
            done(3, 6, vec![read(0, &[10]), read(1, &[11]), append(0, 12), read(0, &[10, 12])]),
            done(4, 5, vec![read(1, &[11])]),
        ];
        assert_eq!(judge(&history, &[vec![10, 12], vec![11]]), Ok(()));
    }

    #[test]
    fn half_a_transaction_is_found() {
        let mut history = [done(1, 2, vec![append(0, 10), append(1, 11)])];
        assert!(judge(&history, &[vec![10], vec![]]).is_err(), "acknowledged");
        history[0].outcome = Outcome::Unknown;
        assert!(judge(&history, &[vec![10], vec![]]).is_err(), "half of it happened");
        assert_eq!(judge(&history, &[vec![], vec![]]), Ok(()));
        history[0].outcome = Outcome::Refused;
        assert!(judge(&history, &[vec![10], vec![11]]).is_err(), "refused, and there");
    }

    #[test]
    fn a_reader_between_two_appends_is_found() {
        let history =
            [done(1, 4, vec![append(0, 10), append(1, 11)]), done(2, 3, vec![read(0, &[10]), read(1, &[])])];
        let found = judge(&history, &[vec![10], vec![11]]).unwrap_err();
        assert!(found.contains("#0") && found.contains("#1"), "{found}");
    }

    #[test]
    fn two_that_did_not_see_each_other_are_found() {
        // Write skew: each reads what the other appends to.
        let history =
            [done(1, 4, vec![read(1, &[]), append(0, 10)]), done(2, 3, vec![read(0, &[]), append(1, 11)])];
        assert!(judge(&history, &[vec![10], vec![11]]).is_err());
    }

    #[test]
    fn a_reader_of_what_is_past_is_found() {
        let history = [done(1, 2, vec![append(0, 10)]), done(3, 4, vec![read(0, &[])])];
        assert!(judge(&history, &[vec![10]]).is_err(), "it was acknowledged before");
        let together = [done(1, 3, vec![append(0, 10)]), done(2, 4, vec![read(0, &[])])];
        assert_eq!(judge(&together, &[vec![10]]), Ok(()));
    }

    #[test]
    fn a_lost_or_foreign_word_is_found() {
        let history = [done(1, 2, vec![read(0, &[5])])];
        assert!(judge(&history, &[vec![]]).is_err());
        assert!(judge(&[], &[vec![5]]).is_err());
    }
}
