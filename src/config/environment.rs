//! Settings in the process environment. A name that begins like one of ours and is none of ours is refused, naming the
//! nearest (decisions.md 16): a misspelt limit must not be a limit that is off.

use super::ConfigError;
use super::table::{IMAGE_DIGEST, PREFIXES, TABLE};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// A process environment: names and values.
pub type Environment = Vec<(OsString, OsString)>;

/// What the environment states.
#[derive(Debug, Default)]
pub(crate) struct Stated {
    /// Settings of the table.
    pub(crate) values: BTreeMap<usize, String>,
    /// `WEALD_RELAY_IMAGE_DIGEST`, unless blank.
    pub(crate) image_digest: Option<String>,
}

/// TrueSeal's relay had names of its own; none is a setting here (decisions.md 42).
const TRUESEAL: &str = "TRUESEAL_RELAY_";

/// Reads every name of ours.
///
/// # Errors
/// A name that is no setting, or a value that is not UTF-8.
pub(crate) fn read(environment: &Environment) -> Result<Stated, ConfigError> {
    let mut stated = Stated::default();
    for (name, value) in environment {
        let name = name.to_string_lossy();
        let ours = PREFIXES.iter().any(|p| name.starts_with(p)) || name.starts_with(TRUESEAL);
        if !ours || is_service_link(&name, &value.to_string_lossy()) {
            continue;
        }
        let row = TABLE.iter().find(|row| row.name == name);
        if row.is_none() && name != IMAGE_DIGEST {
            return Err(unknown(&name));
        }
        let Some(value) = value.to_str() else {
            return Err(ConfigError::of_name(&name, "is not UTF-8"));
        };
        match row {
            Some(row) => drop(stated.values.insert(row.key as usize, value.to_owned())),
            None => stated.image_digest = Some(value.trim().to_owned()).filter(|v| !v.is_empty()),
        }
    }
    Ok(stated)
}

fn unknown(name: &str) -> ConfigError {
    if name.starts_with("TRUESEAL_RELAY_STORE_") {
        return ConfigError::of_name(
            name,
            "is not used: this relay has a store of its own (DROVER_DATA_DIR), and the import of a TrueSeal store is not \
             built yet",
        );
    }
    ConfigError::of_name(
        name,
        &format!("is not a setting; did you mean {}?", nearest(name)),
    )
}

/// The full name of a setting that is closest to a misspelt one.
pub(crate) fn nearest(name: &str) -> &'static str {
    let bare = |name: &str| {
        let prefixes = PREFIXES.iter().chain([&TRUESEAL]);
        prefixes
            .filter_map(|prefix| name.strip_prefix(prefix))
            .next()
            .unwrap_or(name)
            .to_owned()
    };
    // A wrong prefix counts less than a wrong letter.
    let distance = |known: &str| {
        (
            strsim::damerau_levenshtein(&bare(name), &bare(known)),
            strsim::damerau_levenshtein(name, known),
        )
    };
    let names = TABLE.iter().map(|row| row.name).chain([IMAGE_DIGEST]);
    names.min_by_key(|known| distance(known)).unwrap_or(IMAGE_DIGEST)
}

/// Kubernetes tells every container of each Service beside it: one called `drover` sets `DROVER_PORT=tcp://…`,
/// `DROVER_SERVICE_HOST` and more. Those are not misspelt settings.
fn is_service_link(name: &str, value: &str) -> bool {
    let address = value.starts_with("tcp://") || value.starts_with("udp://") || value.starts_with("sctp://");
    let of_port = ["_TCP", "_UDP", "_SCTP"].iter().any(|transport| {
        name.split_once("_PORT_").is_some_and(|(_, rest)| {
            rest.starts_with(|c: char| c.is_ascii_digit())
                && ["", "_ADDR", "_PORT", "_PROTO"]
                    .iter()
                    .any(|end| rest.ends_with(&format!("{transport}{end}")))
        })
    });
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && address)
        || of_port
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(name: &str, value: &str) -> Result<Stated, ConfigError> {
        read(&vec![(name.into(), value.into())])
    }

    /// decisions.md 16; W13.44.
    #[test]
    fn a_misspelt_name_is_refused_naming_the_nearest() {
        for (name, meant) in [
            ("WEALD_RELAY_MIN_ENCC", "WEALD_RELAY_MIN_ENC"),
            ("WEALD_RELAY_MAX_CONECTIONS", "WEALD_RELAY_MAX_CONNECTIONS"),
            ("DROVER_DATADIR", "DROVER_DATA_DIR"),
            ("WEALD_RELAY_DATA_DIR", "DROVER_DATA_DIR"),
            ("WEALD_RELAY_", "WEALD_RELAY_TLS"),
            ("TRUESEAL_RELAY_MAX_CONNECTIONS", "WEALD_RELAY_MAX_CONNECTIONS"),
        ] {
            let refusal = read_one(name, "hunter2").unwrap_err().to_string();
            assert!(refusal.starts_with(name) && refusal.contains(meant), "{refusal}");
            assert!(!refusal.contains("hunter2"), "{refusal}");
        }
    }

    /// decisions.md 42.
    #[test]
    fn a_trueseal_store_is_not_used_and_its_import_not_promised() {
        let refusal = read_one("TRUESEAL_RELAY_STORE_POSTGRES_DSN", "postgres://u:hunter2@h/d")
            .unwrap_err()
            .to_string();
        assert!(
            refusal.contains("is not built yet") && !refusal.contains("hunter2"),
            "{refusal}"
        );
    }

    #[test]
    fn names_of_others_and_service_links_are_left_alone() {
        for (name, value) in [
            ("WEALD_HOSTNAME", "x"),
            ("PATH", "/bin"),
            ("DROVER_SERVICE_HOST", "10.0.0.1"),
            ("DROVER_SERVICE_PORT", "8443"),
            ("DROVER_SERVICE_PORT_WSS", "8443"),
            ("DROVER_PORT", "tcp://10.0.0.1:8443"),
            ("DROVER_PORT_8443_TCP", "tcp://10.0.0.1:8443"),
            ("WEALD_RELAY_PORT_8443_TCP_ADDR", "10.0.0.1"),
        ] {
            assert!(read_one(name, value).unwrap().values.is_empty(), "{name}");
        }
        assert!(read_one("DROVER_PORT", "8443").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_value_that_is_not_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let environment = vec![(
            "WEALD_RELAY_HOSTNAME".into(),
            OsString::from_vec(vec![0xff, 0xfe]),
        )];
        assert!(
            read(&environment)
                .unwrap_err()
                .to_string()
                .starts_with("WEALD_RELAY_HOSTNAME")
        );
    }

    #[test]
    fn a_blank_image_digest_is_ignored() {
        assert_eq!(read_one(IMAGE_DIGEST, "  ").unwrap().image_digest, None);
        assert_eq!(
            read_one(IMAGE_DIGEST, "sha256:00")
                .unwrap()
                .image_digest
                .as_deref(),
            Some("sha256:00")
        );
    }
}
