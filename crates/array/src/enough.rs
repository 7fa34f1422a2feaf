//! Enough: whether what stands on an array can be read, and may be changed, without some of its members.
//!
//! Place on the path: before every write, and where it is somebody's choice to go on without a member: at a
//! start, before one is replaced, and before one that comes back is emptied.
//!
//! Invariant: a key is changed only while enough members are in to read what it may have held, by the form
//! that survives most. So whoever goes out then has what nobody changes meanwhile (`claims`).

use crate::array::{Array, Place};
use crate::placement;
use plimsoll_kv::{Error, Form};

/// True if values of some of these forms could be read with those that were in, and cannot with those that
/// are.
pub(crate) fn loses(forms: impl Iterator<Item = Form>, were_in: &[bool], are_in: &[bool]) -> bool {
    lost(forms, were_in, are_in).next().is_some()
}

/// Of which forms and primaries values could be read with those that were in, and cannot with those that are.
pub(crate) fn lost(
    forms: impl Iterator<Item = Form>,
    were_in: &[bool],
    are_in: &[bool],
) -> impl Iterator<Item = (Form, usize)> {
    let primaries = |form: Form| (0..are_in.len()).map(move |primary| (form, primary));
    forms.flat_map(primaries).filter(|of| !can_be_read(*of, are_in) && can_be_read(*of, were_in))
}

/// Whether values of a form and a primary can be read.
fn can_be_read((form, primary): (Form, usize), is_in: &[bool]) -> bool {
    let members = is_in.len();
    let holders = (0..form.roles()).filter(|role| is_in[placement::member(primary, *role, members)]).count();
    match form {
        // A stub tells its set, of which it is computed: the records of that may stand on any member.
        Form::Packed { parities, .. } if !is_in[primary] => {
            let out = is_in.iter().filter(|is_in| !**is_in).count();
            holders > 0 && out <= usize::from(parities)
        }
        _ => holders >= form.needed(),
    }
}

impl Array {
    /// True if as many members are in as have to be for any change of a key of a primary.
    pub(crate) fn may_change(&self, primary: usize) -> bool {
        let (needed, of) = self.forms.needed_for_changes(self.count());
        (0..of).filter(|role| self.role_is_in(primary, *role)).count() >= needed
    }

    /// Whether those that are in know everything that a member should have and does not claim. Where all
    /// values are copies, or shards of one form, a key that too few are left to tell, or to read, says so
    /// itself.
    pub(crate) fn is_told(&self, member: usize) -> bool {
        if self.forms.sole().is_some_and(|form| !form.is_packed()) {
            return true;
        }
        let claims = &self.members.borrow()[member].claims;
        let its = |role: usize| placement::primary_of(member, role, self.count());
        (0..self.roles).all(|role| claims.has(role) || self.may_change(its(role)))
    }

    /// True if so many of the members that a key may stand on are in, and it may be changed. One that is
    /// being filled takes writes, and does not count: it may begin anew, with nothing, if the server ends
    /// meanwhile.
    pub(crate) fn has_enough(&self, place: &Place, needed: usize) -> bool {
        let is_in = |role: &usize| self.role_is_in(place.primary, *role);
        (0..self.roles).filter(is_in).count() >= needed && self.may_change(place.primary)
    }

    fn role_is_in(&self, primary: usize, role: usize) -> bool {
        self.readable(placement::member(primary, role, self.count())).is_some()
    }

    /// A key is not changed.
    pub(crate) fn nowhere(&self, place: &Place, needed: usize) -> Error {
        Error::ReadOnly(self.too_few(place, needed))
    }

    /// Why it is not.
    pub(crate) fn too_few(&self, place: &Place, needed: usize) -> String {
        let names = |is_named: &dyn Fn(usize) -> bool| {
            let named = (0..self.count()).filter(|member| is_named(*member));
            named.map(|member| self.name(member)).collect::<Vec<_>>().join(", ")
        };
        let (for_changes, _) = self.forms.needed_for_changes(self.count());
        if self.forms.has_packed() && !self.may_change(place.primary) {
            let out = names(&|member| self.readable(member).is_none());
            let (words, count) = ("packed values can be changed only while", self.count());
            return format!("{out} are not in, and {words} {for_changes} of {count} devices are");
        }
        let needed = if self.forms.has_packed() { needed } else { needed.max(for_changes) };
        let its = names(&|member| placement::role(place.primary, member, self.count()) < self.roles);
        format!("fewer than {needed} of the devices that the key belongs on are in ({its})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loses_without(form: Form, out: &[usize]) -> bool {
        let is_in: Vec<bool> = (0..6).map(|member| !out.contains(&member)).collect();
        loses([form].into_iter(), &[true; 6], &is_in)
    }

    #[test]
    fn as_many_may_go_as_a_form_survives() {
        let forms = [
            (Form::Copies(1), 0),
            (Form::Copies(2), 1),
            (Form::Copies(3), 2),
            (Form::Shards { data: 4, parities: 1 }, 1),
            (Form::Shards { data: 4, parities: 2 }, 2),
            (Form::Packed { data: 4, parities: 2 }, 2),
        ];
        for (form, survives) in forms {
            let neighbours: Vec<usize> = (3..6).collect();
            assert!(!loses_without(form, &neighbours[..survives]), "{form:?}");
            assert!(loses_without(form, &neighbours[..=survives]), "{form:?}");
        }
        assert!(!loses_without(Form::Copies(2), &[0, 3]), "they are no neighbours");
        assert!(
            loses_without(Form::Packed { data: 4, parities: 2 }, &[0, 2, 4]),
            "records of sets are anywhere"
        );
    }

    #[test]
    fn what_was_lost_before_is_lost_no_more() {
        let were_in = [true, true, false, true, true, true];
        let copies = || [Form::Copies(1)].into_iter();
        assert!(!loses(copies(), &were_in, &were_in));
        assert!(loses(copies(), &were_in, &[true, true, false, false, true, true]));
    }
}
