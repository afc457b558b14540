//! The rules that a capture is checked against, in the words of `specs`.

/// The id and the text of a rule in each line, in the order of the documents.
const RULES: &str = include_str!("rules.txt");

/// Returns the text of a rule; empty for an unknown rule.
pub fn rule_text(rule: &str) -> &'static str {
    let found = rules().find(|(id, _)| *id == rule);
    found.map_or("", |(_, text)| text)
}

fn rules() -> impl Iterator<Item = (&'static str, &'static str)> {
    RULES.lines().filter_map(|line| line.split_once(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_have_the_text_of_the_tables_of_requirements() {
        let tables = [
            include_str!("../../../specs/ms-smbd.toml"),
            include_str!("../../../specs/iwarp.toml"),
            include_str!("../../../specs/roce.toml"),
        ];
        let rows = tables
            .iter()
            .flat_map(|table| table.split("[[requirement]]"));
        let field = |row: &'static str, name: &str| {
            let (_, rest) = row.split_once(&format!("\n{name} = \""))?;
            rest.split_once('"').map(|(value, _)| value)
        };
        let requirements: Vec<_> = rows
            .filter_map(|row| Some((field(row, "id")?, field(row, "text")?)))
            .collect();
        for rule in rules() {
            assert!(requirements.contains(&rule), "{rule:?} is in no table");
        }
        assert_eq!(rules().count(), RULES.lines().count());
        assert!(rules().count() > 50, "{}", rules().count());
    }
}
