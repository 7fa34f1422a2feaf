//! Enough: whether what stands on an array can be read without some of its members.
//!
//! Place on the path: none; asked where it is somebody's choice to go on without a member: at a start,
//! before one is replaced, and before one that comes back is emptied.

use crate::placement;
use plimsoll_kv::Form;

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
