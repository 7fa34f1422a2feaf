//! Reads the tables of a Markdown page.

/// A table: the heading it stands under, its column names and its rows.
pub(crate) struct Table {
    pub(crate) heading: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// The tables of a page in order.
pub(crate) fn parse(page: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let mut heading = String::new();
    let mut inside = false;
    for line in page.lines() {
        if let Some(text) = line.strip_prefix('#') {
            heading = text.trim_start_matches('#').trim().to_owned();
        }
        if !line.starts_with('|') {
            inside = false;
        } else if !inside {
            inside = true;
            tables.push(Table { heading: heading.clone(), columns: cells(line), rows: Vec::new() });
        } else if !line.starts_with("|---") {
            tables.last_mut().expect("a row follows a head").rows.push(cells(line));
        }
    }
    tables
}

/// The page that this crate keeps.
pub(crate) fn page() -> Vec<Table> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/on-flash-format.md");
    parse(&std::fs::read_to_string(path).expect("docs/on-flash-format.md can be read"))
}

/// The first table under a heading with a first and a third or second column so named.
pub(crate) fn find<'a>(tables: &'a [Table], heading: &str, column: &str) -> &'a Table {
    tables
        .iter()
        .find(|table| table.heading == heading && table.columns.iter().any(|name| name == column))
        .unwrap_or_else(|| panic!("docs/on-flash-format.md has no table '{column}' under '{heading}'"))
}

/// A field of a drawn structure.
pub(crate) struct Field {
    pub(crate) offset: usize,
    pub(crate) size: usize,
    pub(crate) name: String,
}

/// The fields of the table that draws a structure: they follow each other without gaps.
pub(crate) fn fields(tables: &[Table], heading: &str) -> Vec<Field> {
    let table = find(tables, heading, "offset");
    let mut next = 0;
    let field = |row: &Vec<String>| {
        let number = |at: usize| {
            row[at].parse().unwrap_or_else(|_| panic!("'{heading}' has '{}' for a number", row[at]))
        };
        let field = Field { offset: number(0), size: number(1), name: row[2].clone() };
        assert_eq!(field.offset, next, "'{heading}': {} does not follow the field before", field.name);
        next += field.size;
        field
    };
    table.rows.iter().map(field).collect()
}

/// Bytes of a drawn structure.
pub(crate) fn size(fields: &[Field]) -> usize {
    fields.last().map_or(0, |field| field.offset + field.size)
}
