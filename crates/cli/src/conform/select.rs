//! The selection of cases by `--only` and `--skip`.

use smbdirect_conform::{Case, Selection};

/// Returns whether a case is selected: it is in `only`, unless that is empty, and not in `skip`.
pub(super) fn is_selected(case: &Case, only: &[Selection], skip: &[Selection]) -> bool {
    let wanted = only.is_empty() || only.iter().any(|selection| selection.contains(case));
    wanted && !skip.iter().any(|selection| selection.contains(case))
}

#[cfg(test)]
mod tests {
    use smbdirect_conform::server_cases;

    use super::*;

    #[test]
    fn only_and_skip_combine() {
        let parse = |text: &str| vec![text.parse::<Selection>().unwrap()];
        let count = |only: &[Selection], skip: &[Selection]| {
            let cases = server_cases().filter(|case| is_selected(case, only, skip));
            cases.count()
        };
        assert_eq!(count(&[], &[]), server_cases().count());
        assert_eq!(count(&parse("m1-m3"), &[]), 3);
        assert_eq!(count(&parse("m1-m3"), &parse("m2")), 2);
        assert_eq!(count(&parse("bugs"), &parse("bugs")), 0);
    }
}
