//! The notation of values in the data files: JSON to CBOR items, byte expressions, and patterns an item is held against.
//! vectors/README.md is its reference.

use crate::cbor::Item;
use crate::hex;
use crate::run::{Run, blake3};
use serde_json::Value as Json;
use std::collections::HashMap;

/// Something in a data file that can't be meant: a fault of the script, not of the relay.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Bad(pub String);

/// Why an item is not what a pattern asks for.
pub type Mismatch = String;

pub(crate) fn bad<T>(what: impl Into<String>) -> Result<T, Bad> {
    Err(Bad(what.into()))
}

/// Names that mean the same in every script.
const SHARED: &[&str] = &[
    "founder", "founder2", "recovery", "quorum1", "quorum2", "quorum3", "root", "root2",
];

/// The names of one script: its actors, groups and saved values.
pub struct Scope<'r> {
    /// What is shared.
    pub run: &'r Run,
    /// Form and rule, so that no two scripts have an actor or a group in common.
    name: String,
    outsiders: Vec<String>,
    /// Saved values.
    pub saved: HashMap<String, Item>,
}

impl<'r> Scope<'r> {
    /// Of the script with this name, in which these actors belong to the second workspace.
    pub fn new(run: &'r Run, name: impl Into<String>, outsiders: &[String]) -> Self {
        Self {
            run,
            name: name.into(),
            outsiders: outsiders.to_vec(),
            saved: HashMap::new(),
        }
    }

    fn full_name(&self, name: &str) -> String {
        match SHARED.contains(&name) {
            true => name.to_owned(),
            false => format!("{}/{name}", self.name),
        }
    }

    /// An actor's public key.
    pub fn key(&self, actor: &str) -> [u8; 32] {
        self.run.key(&self.full_name(actor))
    }

    /// Whether an actor belongs to the second workspace.
    pub fn is_outsider(&self, actor: &str) -> bool {
        self.outsiders.iter().any(|outsider| outsider == actor)
    }

    /// An actor's entry hash in its workspace (05 §2).
    pub fn entry(&self, actor: &str) -> Result<[u8; 32], Bad> {
        match self.run.workspaces.get(usize::from(self.is_outsider(actor))) {
            Some(workspace) => Ok(blake3(&[&self.key(actor), &workspace.salt])),
            None => bad(format!("{actor} has no workspace")),
        }
    }

    /// The item a JSON value stands for.
    pub fn item(&self, json: &Json) -> Result<Item, Bad> {
        Ok(match json {
            Json::Null => Item::Null,
            Json::Bool(value) => Item::Bool(*value),
            Json::Number(number) => match number.as_u64() {
                Some(value) => Item::Uint(value),
                None => return bad(format!("{number} is no unsigned integer")),
            },
            Json::String(text) => match text.strip_prefix('$').filter(|name| is_name(name)) {
                Some(name) => self.saved(name)?.clone(),
                None => Item::Bytes(self.bytes(text)?),
            },
            Json::Array(items) => Item::Array(
                items
                    .iter()
                    .map(|item| self.item(item))
                    .collect::<Result<_, _>>()?,
            ),
            Json::Object(object) => {
                let arguments: Vec<(&str, &Json)> =
                    object.iter().map(|(key, value)| (key.as_str(), value)).collect();
                match arguments[..] {
                    [("text", Json::String(text))] => Item::Text(text.clone()),
                    [("u64", Json::String(digits))] => match digits.parse() {
                        Ok(value) => Item::Uint(value),
                        Err(_) => return bad(format!("{digits} is no unsigned integer")),
                    },
                    [("raw", Json::String(text))] => Item::Raw(self.bytes(text)?),
                    [("doc", document)] => Item::Bytes(self.item(document)?.encode()),
                    [("now", ahead)] => match ahead.as_i64() {
                        Some(ms) => Item::Uint(self.run.now_ms().saturating_add_signed(ms)),
                        None => return bad("now takes milliseconds"),
                    },
                    [("now_s", ahead)] => match ahead.as_i64() {
                        Some(s) => Item::Uint((self.run.now_ms() / 1000).saturating_add_signed(s)),
                        None => return bad("now_s takes seconds"),
                    },
                    [("sum", Json::Array(terms))] => {
                        let mut sum = 0u64;
                        for term in terms {
                            sum = sum.saturating_add(uint(&self.item(term)?)?);
                        }
                        Item::Uint(sum)
                    }
                    [("count", count), ("of", of)] => {
                        Item::Array(self.counted(uint(&self.item(count)?)?, of)?)
                    }
                    [("sorted", list)] => match self.item(list)? {
                        Item::Array(mut items) => {
                            items.sort_by_key(Item::encode);
                            items.dedup();
                            Item::Array(items)
                        }
                        _ => return bad("sorted takes a list"),
                    },
                    [("map", Json::Object(pairs))] => {
                        let mut map = Vec::new();
                        for (key, value) in pairs {
                            let key = key.parse().map_err(|_| Bad(format!("{key} is no integer key")))?;
                            map.push((key, self.item(value)?));
                        }
                        map.sort_by_key(|(key, _)| *key);
                        Item::Map(map)
                    }
                    _ => return bad(format!("no value: {json}")),
                }
            }
        })
    }

    fn counted(&self, count: u64, of: &Json) -> Result<Vec<Item>, Bad> {
        let mut scope = Scope {
            run: self.run,
            name: self.name.clone(),
            outsiders: self.outsiders.clone(),
            saved: self.saved.clone(),
        };
        (0..count)
            .map(|i| {
                scope.saved.insert("i".into(), Item::Uint(i));
                scope.item(of)
            })
            .collect()
    }

    fn saved(&self, name: &str) -> Result<&Item, Bad> {
        self.saved
            .get(name)
            .ok_or_else(|| Bad(format!("${name} was never saved")))
    }

    /// The bytes an expression stands for.
    pub fn bytes(&self, expression: &str) -> Result<Vec<u8>, Bad> {
        let mut parser = Parser {
            scope: self,
            rest: expression,
        };
        let bytes = parser.terms()?;
        match parser.rest {
            "" => Ok(bytes),
            rest => bad(format!("{rest:?} is left over in {expression:?}")),
        }
    }

    /// Holds an item against a pattern, saving what it says to save.
    ///
    /// # Errors
    /// [`Bad`] if the pattern is none; inside, what differs.
    pub fn matches(&mut self, pattern: &Json, got: &Item) -> Result<Result<(), Mismatch>, Bad> {
        if let Json::Object(object) = pattern {
            let arguments: Vec<(&str, &Json)> =
                object.iter().map(|(key, value)| (key.as_str(), value)).collect();
            match arguments[..] {
                [("any", _)] => return Ok(Ok(())),
                [("save", Json::String(name))] => {
                    self.saved.insert(name.clone(), got.clone());
                    return Ok(Ok(()));
                }
                [("if", of), ("save", Json::String(name))] => {
                    self.saved.insert(name.clone(), got.clone());
                    return self.matches(of, got);
                }
                [("bytes", Json::Number(length))] => {
                    let fits =
                        matches!(got, Item::Bytes(bytes) if Some(bytes.len() as u64) == length.as_u64());
                    return Ok(verdict(fits, || format!("{length} bytes"), got));
                }
                [("least", least)] => return self.between(Some(least), None, got),
                [("most", most)] => return self.between(None, Some(most), got),
                [("least", least), ("most", most)] => return self.between(Some(least), Some(most), got),
                [("contains", wanted)] => {
                    let found = self.found(wanted, got)?;
                    return Ok(verdict(found, || format!("a list with {wanted}"), got));
                }
                [("lacks", unwanted)] => {
                    let found = self.found(unwanted, got)?;
                    return Ok(verdict(!found, || format!("a list without {unwanted}"), got));
                }
                _ => {}
            }
        }
        if let (Json::Array(patterns), Item::Array(items)) = (pattern, got) {
            if patterns.len() != items.len() {
                return Ok(Err(format!(
                    "{} items, not {}: {got}",
                    items.len(),
                    patterns.len()
                )));
            }
            for (pattern, item) in patterns.iter().zip(items) {
                if let Err(mismatch) = self.matches(pattern, item)? {
                    return Ok(Err(mismatch));
                }
            }
            return Ok(Ok(()));
        }
        let wanted = self.item(pattern)?;
        Ok(verdict(wanted == *got, || wanted.to_string(), got))
    }

    fn found(&mut self, wanted: &Json, got: &Item) -> Result<bool, Bad> {
        let Item::Array(items) = got else {
            return Ok(false);
        };
        for item in items {
            if self.matches(wanted, item)?.is_ok() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn between(
        &self,
        least: Option<&Json>,
        most: Option<&Json>,
        got: &Item,
    ) -> Result<Result<(), Mismatch>, Bad> {
        let bound = |json: Option<&Json>| json.map(|json| uint(&self.item(json)?)).transpose();
        let (least, most) = (bound(least)?, bound(most)?);
        let fits = matches!(got, Item::Uint(value)
            if least.is_none_or(|least| *value >= least) && most.is_none_or(|most| *value <= most));
        let wanted = || match (least, most) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("{least} or more"),
            (_, most) => format!("{} or less", most.unwrap_or(u64::MAX)),
        };
        Ok(verdict(fits, wanted, got))
    }
}

fn verdict(fits: bool, wanted: impl FnOnce() -> String, got: &Item) -> Result<(), Mismatch> {
    match fits {
        true => Ok(()),
        false => Err(format!("{got}, not {}", wanted())),
    }
}

/// The number an item is.
pub(crate) fn uint(item: &Item) -> Result<u64, Bad> {
    match item {
        Item::Uint(value) => Ok(*value),
        other => bad(format!("{other} is no number")),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Reads terms separated by blanks: hex digits, `hex*count`, `'text'`, `$saved`, `function(arguments)`.
struct Parser<'a, 'r> {
    scope: &'a Scope<'r>,
    rest: &'a str,
}

impl Parser<'_, '_> {
    fn terms(&mut self) -> Result<Vec<u8>, Bad> {
        let mut out = Vec::new();
        loop {
            self.rest = self.rest.trim_start();
            if self.rest.is_empty() || self.rest.starts_with([',', ')']) {
                return Ok(out);
            }
            out.extend(self.term()?);
        }
    }

    fn eat(&mut self, symbol: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(symbol) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> &str {
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    fn term(&mut self) -> Result<Vec<u8>, Bad> {
        if self.eat('\'') {
            let Some((text, rest)) = self.rest.split_once('\'') else {
                return bad("a quote is not closed");
            };
            self.rest = rest;
            return Ok(text.as_bytes().to_vec());
        }
        if self.eat('$') {
            let name = self.word().to_owned();
            return as_bytes(self.scope.saved(&name)?);
        }
        let word = self.word().to_owned();
        if self.eat('(') {
            let bytes = self.call(&word)?;
            return match self.eat(')') {
                true => Ok(bytes),
                false => bad(format!("{word}( is not closed")),
            };
        }
        let Some(bytes) = hex::decode(&word).filter(|bytes| !bytes.is_empty()) else {
            return bad(format!(
                "neither hex nor a function: {word:?} before {:?}",
                self.rest
            ));
        };
        if self.eat('*') {
            let count: usize = self.word().parse().map_err(|_| Bad("* takes a count".into()))?;
            return Ok(bytes.repeat(count));
        }
        Ok(bytes)
    }

    fn name(&mut self) -> Result<String, Bad> {
        self.rest = self.rest.trim_start();
        match self.word() {
            "" => bad("a name is missing"),
            name => Ok(name.to_owned()),
        }
    }

    fn number(&mut self) -> Result<u64, Bad> {
        match self.eat('$') {
            true => {
                let name = self.word().to_owned();
                uint(self.scope.saved(&name)?)
            }
            false => {
                let digits = self.name()?;
                digits.parse().map_err(|_| Bad(format!("{digits} is no number")))
            }
        }
    }

    fn comma(&mut self) -> Result<(), Bad> {
        match self.eat(',') {
            true => Ok(()),
            false => bad(format!("a comma is missing before {:?}", self.rest)),
        }
    }

    fn call(&mut self, function: &str) -> Result<Vec<u8>, Bad> {
        Ok(match function {
            "key" => {
                let actor = self.name()?;
                self.scope.key(&actor).to_vec()
            }
            "entry" => {
                let actor = self.name()?;
                self.scope.entry(&actor)?.to_vec()
            }
            "group" | "id" | "id32" => {
                let name = self.name()?;
                let mut full = self.scope.full_name(&name).into_bytes();
                if self.eat(',') {
                    full.extend(self.number()?.to_be_bytes());
                }
                let mut bytes = self.scope.run.derive(function, &full).to_vec();
                bytes.truncate(if function == "id" { 16 } else { 32 });
                bytes
            }
            "u64" => self.number()?.to_be_bytes().to_vec(),
            "u16" => (self.number()? as u16).to_be_bytes().to_vec(),
            "flip" => {
                let mut bytes = self.terms()?;
                if let Some(last) = bytes.last_mut() {
                    *last ^= 1;
                }
                bytes
            }
            "hash" => {
                let mut bytes = self.terms()?;
                while self.eat(',') {
                    bytes.extend(self.terms()?);
                }
                blake3(&[&bytes]).to_vec()
            }
            "sign" => {
                let actor = self.name()?;
                self.comma()?;
                let message = self.terms()?;
                let key = self.scope.key(&actor);
                self.scope.run.sign(&key, &message).unwrap_or_default()
            }
            "code_hash" => {
                let code = self.terms()?;
                self.comma()?;
                let token = self.terms()?;
                code_hash(&code, &token)?
            }
            _ => return bad(format!("no function {function}")),
        })
    }
}

/// Bytes in an expression: a number is its 8 bytes, big-endian.
fn as_bytes(item: &Item) -> Result<Vec<u8>, Bad> {
    match item {
        Item::Bytes(bytes) => Ok(bytes.clone()),
        Item::Uint(value) => Ok(value.to_be_bytes().to_vec()),
        Item::Text(text) => Ok(text.clone().into_bytes()),
        other => bad(format!("{other} is no byte string")),
    }
}

/// Argon2id of a code's twelve symbols, salted with the token (06 §3).
pub fn code_hash(code: &[u8], token: &[u8]) -> Result<Vec<u8>, Bad> {
    let symbols: Vec<u8> = code.iter().copied().filter(|symbol| *symbol != b'-').collect();
    let mut hash = vec![0; 32];
    let parameters = argon2::Params::new(19_456, 2, 1, Some(32)).map_err(|error| Bad(error.to_string()))?;
    argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, parameters)
        .hash_password_into(&symbols, token, &mut hash)
        .map_err(|error| Bad(format!("code_hash: {error}")))?;
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions_values_and_patterns() {
        let run = Run::new([7; 16]);
        let mut scope = Scope::new(&run, "array/x", &[]);
        let hex_of = |scope: &Scope<'_>, text: &str| hex::encode(&scope.bytes(text).unwrap());
        assert_eq!(
            hex_of(&scope, "8207 ab*3 'hi' u64(300)"),
            "8207ababab6869000000000000012c"
        );
        assert_eq!(hex_of(&scope, ""), "");
        assert_eq!(hex_of(&scope, "flip(00)"), "01");
        assert_eq!(scope.bytes("group(a)").unwrap().len(), 32);
        assert_eq!(scope.bytes("id(a)").unwrap().len(), 16);
        assert_ne!(
            scope.bytes("group(a)").unwrap(),
            scope.bytes("group(a, 0)").unwrap()
        );
        assert_eq!(scope.bytes("sign(al, 'm')").unwrap().len(), 64);
        assert_eq!(hex_of(&scope, "hash('a', 'bc')"), hex_of(&scope, "hash('abc')"));
        for wrong in ["8", "nope(1)", "'open", "key(", "$unsaved", "ab*x", "8207)"] {
            assert!(scope.bytes(wrong).is_err(), "{wrong}");
        }
        let list = scope.item(&json!({"count": 3, "of": "u64($i)"})).unwrap();
        assert!(matches!(&list, Item::Array(items) if items.len() == 3));
        assert_eq!(
            scope.item(&json!({"u64": "18446744073709551615"})).unwrap(),
            Item::Uint(u64::MAX)
        );
        assert!(scope.item(&json!(-1)).is_err() && scope.item(&json!({"huh": 1})).is_err());

        let mut fits = |pattern: Json, item: Item| scope.matches(&pattern, &item).unwrap().is_ok();
        assert!(fits(json!({"save": "seq"}), Item::Uint(4)));
        assert!(fits(json!({"sum": ["$seq", 1]}), Item::Uint(5)));
        assert!(fits(json!({"least": 3, "most": 5}), Item::Uint(4)));
        assert!(!fits(json!({"least": "$seq"}), Item::Uint(3)));
        assert!(fits(
            json!({"contains": 2}),
            Item::Array(vec![Item::Uint(1), Item::Uint(2)])
        ));
        assert!(!fits(
            json!({"lacks": 2}),
            Item::Array(vec![Item::Uint(1), Item::Uint(2)])
        ));
        assert!(fits(
            json!([1, {"any": null}]),
            Item::Array(vec![Item::Uint(1), Item::Null])
        ));
        assert!(!fits(json!([1]), Item::Array(vec![Item::Uint(1), Item::Null])));
        assert!(fits(json!({"bytes": 2}), Item::Bytes(vec![1, 2])));
    }

    /// 06 §3, and the wrong code hashes to something else.
    #[test]
    fn code_hashes() {
        let token = [0; 16];
        let hash = code_hash(b"0000-0000-0000", &token).unwrap();
        assert!(hex::encode(&hash).starts_with("794c4b55d301afdc"));
        assert_ne!(code_hash(b"0000-0000-0001", &token).unwrap(), hash);
    }
}
