//! docs/configuration.md, made from the table. A test compares the file with it; `UPDATE_DOCS=1 cargo test` writes it.

use super::kind::{Kind, Off, TLS_WORDS, U64};
use super::table::{IMAGE_DIGEST, Row, TABLE};
use std::fmt::Write as _;

const HEAD: &str = "\
# Settings

Made from the table in src/config/table.rs; a test keeps this page true (`UPDATE_DOCS=1 cargo test -p drover` writes it).

A value is looked for in the process environment, then in `relay.toml`, then here. `relay.toml` is read from the working
directory, or from the file that `--config PATH` names. It may use the full names at top level, or lower-case names
without the prefix under `[relay]`:

```toml
WEALD_RELAY_HOSTNAME = \"relay.example\"

[relay]
max_connections = 2000
data_dir = \"/var/lib/drover\"
```

Words are exact and case-sensitive, except `unlimited`. Numbers are unsigned decimal without a unit. A blank value, a
name that is not listed here, an array or a table is refused: exit code 78 and one line that names the setting.
`drover --check-config` shows every value and where it came from, without secrets, and opens nothing.

Each client holds an open file of the process, and 512 more are kept for the store and the private listener. The soft
limit (`ulimit -n`) is raised to the hard one at the start; if that is below `WEALD_RELAY_MAX_CONNECTIONS` + 512, a
warning says so and clients beyond it are turned away; below 128 it does not start.

";

fn render() -> String {
    let mut out = HEAD.to_owned();
    out.push_str("| Name | Allowed | Default | What it does |\n| --- | --- | --- | --- |\n");
    for row in TABLE {
        let default = row.default.map_or("unset".to_owned(), |text| format!("`{text}`"));
        let _ = writeln!(
            out,
            "| `{}` | {} | {default} | {} |",
            row.name,
            allowed(row),
            row.doc
        );
    }
    let _ = writeln!(
        out,
        "\nIn the environment only: `{IMAGE_DIGEST}`, the digest that `/version` and AUTH_ACK report. Unset, they \
         report a hash of the running executable."
    );
    out
}

fn words(words: &[&str]) -> String {
    words
        .iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn allowed(row: &Row) -> String {
    match row.kind {
        Kind::Text => "text".to_owned(),
        Kind::Host => "host name, with a port if need be".to_owned(),
        Kind::Word(list) => words(list),
        Kind::Tls => words(TLS_WORDS),
        Kind::HostPort => "host:port".to_owned(),
        Kind::Database => "`file://` path".to_owned(),
        Kind::Storage => "`file://` path, `s3://` bucket".to_owned(),
        Kind::HttpUrl => "http or https address".to_owned(),
        Kind::Key32 => "base64 of 32 bytes".to_owned(),
        Kind::Number { min, max, off } => {
            let range = if max == U64 {
                format!("number ≥ {min}")
            } else {
                format!("{min} to {max}")
            };
            match off {
                Off::Never => range,
                Off::Unlimited => format!("{range}, `unlimited`"),
                Off::UnlimitedOrZero => format!("{range}; 0 or `unlimited`: off"),
            }
        }
    }
}

#[test]
fn the_page_of_settings_is_true() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let page = render();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).expect("docs/configuration.md can be written");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/configuration.md is out of date: UPDATE_DOCS=1 cargo test -p drover"
    );
}
