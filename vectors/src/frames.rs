//! Frames by name and field, from `weald/schema.json`: to bytes in either form, and bytes held against what is expected.

use crate::cbor::{Item, TOLD_CHARS_MAX};
use crate::run::blake3;
use crate::values::{Bad, Mismatch, Scope, bad, uint};
use serde_json::{Map, Value as Json};
use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

/// The two forms of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// Arrays, as deployed.
    Array,
    /// Integer-keyed maps.
    Map,
}

impl Form {
    /// Both.
    pub const ALL: [Form; 2] = [Form::Array, Form::Map];

    /// As the data files name it.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Array => "array",
            Form::Map => "map",
        }
    }
}

/// Fields of a frame by name.
pub type Fields = BTreeMap<String, Item>;

/// Where a field stands in a frame's bytes.
#[derive(Clone, Debug)]
enum Shape {
    Uint(u64),
    Field(String),
    /// Text on the wire, the bytes of this field here.
    Text(String),
    /// A byte string that holds a document of its own.
    Doc(Box<Shape>),
    Array(Vec<Shape>),
    /// Keys that may be absent are marked.
    Map(Vec<(u64, bool, Shape)>),
    Empty,
}

#[derive(Debug)]
struct Kind {
    from_client: bool,
    from_relay: bool,
    array: Option<Shape>,
    map: Option<Shape>,
    /// The map form sends the array.
    array_only: bool,
    default: Map<String, Json>,
    content_hash: Vec<String>,
    sign: Option<Sign>,
}

/// How a signature comes about that a script does not give.
#[derive(Debug)]
struct Sign {
    field: String,
    key: Option<String>,
    over: Shape,
    /// Over the bytes of the field itself, not over an encoding.
    raw: bool,
}

/// Every frame.
#[derive(Debug)]
pub struct Schema {
    kinds: HashMap<String, Kind>,
    /// In the order of the file, for telling what a message is.
    names: Vec<String>,
}

impl Schema {
    /// The one schema there is.
    ///
    /// # Panics
    /// When the file that was compiled in is no schema.
    pub fn get() -> &'static Schema {
        static SCHEMA: OnceLock<Schema> = OnceLock::new();
        SCHEMA.get_or_init(|| Schema::parse(include_str!("../weald/schema.json")).expect("schema.json"))
    }

    fn parse(text: &str) -> Result<Self, Bad> {
        let json: Json = serde_json::from_str(text).map_err(|error| Bad(error.to_string()))?;
        let Some(frames) = json["frames"].as_object() else {
            return bad("no frames");
        };
        let mut kinds = HashMap::new();
        for (name, json) in frames {
            kinds.insert(
                name.clone(),
                kind(json).map_err(|Bad(what)| Bad(format!("{name}: {what}")))?,
            );
        }
        Ok(Self {
            kinds,
            names: frames.keys().cloned().collect(),
        })
    }

    /// Names of all frames.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Whether this form has the frame at all: SUB_ACK and others are sent in one form only.
    pub fn is_sent(&self, name: &str, form: Form) -> Result<bool, Bad> {
        Ok(self.shape(name, form)?.is_some())
    }

    fn kind(&self, name: &str) -> Result<&Kind, Bad> {
        self.kinds
            .get(name)
            .ok_or_else(|| Bad(format!("no frame {name}")))
    }

    fn shape(&self, name: &str, form: Form) -> Result<Option<&Shape>, Bad> {
        let kind = self.kind(name)?;
        Ok(match form {
            Form::Map if !kind.array_only => kind.map.as_ref(),
            _ => kind.array.as_ref(),
        })
    }

    /// The fields of a frame to be sent: those given, the defaults, and what is computed from them.
    pub fn fields(&self, name: &str, given: &Map<String, Json>, scope: &Scope<'_>) -> Result<Fields, Bad> {
        let kind = self.kind(name)?;
        let mut fields = Fields::new();
        let signature = kind.sign.as_ref().map(|sign| sign.field.as_str());
        for (field, json) in kind.default.iter().chain(given) {
            let is_rule = json.get("signed_by").is_some() || json.get("signatures_of").is_some();
            if Some(field.as_str()) != signature || !is_rule {
                fields.insert(field.clone(), scope.item(json)?);
            }
        }
        if !kind.content_hash.is_empty() && !fields.contains_key("hash") {
            let mut preimage = Vec::new();
            for field in &kind.content_hash {
                preimage.extend(get(&fields, field)?.encode());
            }
            fields.insert("hash".into(), Item::Bytes(blake3(&[&preimage]).to_vec()));
        }
        if let Some(sign) = &kind.sign
            && !fields.contains_key(&sign.field)
        {
            let value = signature_of(sign, given.get(&sign.field), &fields, scope)?;
            fields.insert(sign.field.clone(), value);
        }
        Ok(fields)
    }

    /// The frame's bytes in this form.
    pub fn encode(&self, name: &str, fields: &Fields, form: Form) -> Result<Vec<u8>, Bad> {
        let shapes = self.kind(name)?;
        for field in fields.keys() {
            let known = [&shapes.array, &shapes.map]
                .into_iter()
                .flatten()
                .any(|shape| shape.names(field))
                || shapes.sign.as_ref().is_some_and(|sign| {
                    sign.key.as_ref() == Some(field) || sign.field == *field || sign.over.names(field)
                });
            if !known {
                return bad(format!("{name} has no field {field}"));
            }
        }
        match self.shape(name, form)? {
            Some(shape) => Ok(build(shape, fields)?.encode()),
            None => bad(format!("{name} has no {} form", form.name())),
        }
    }

    /// Holds a message against a frame; fields the pattern does not mention may be anything.
    ///
    /// # Errors
    /// [`Bad`] if the script can't be meant; inside, what differs.
    pub fn matches(
        &self,
        name: &str,
        patterns: &Map<String, Json>,
        form: Form,
        got: &Item,
        scope: &mut Scope<'_>,
    ) -> Result<Result<(), Mismatch>, Bad> {
        let Some(shape) = self.shape(name, form)? else {
            return bad(format!("{name} has no {} form", form.name()));
        };
        // A field may be in one form only, such as the build digest; then the other has nothing to compare.
        let kind = self.kind(name)?;
        for field in patterns.keys() {
            let known = [&kind.array, &kind.map]
                .into_iter()
                .flatten()
                .any(|shape| shape.names(field));
            if !known {
                return bad(format!("{name} has no field {field}"));
            }
        }
        fits(shape, patterns, got, scope)
    }

    /// What a message of the relay is, for whoever reads why a rule failed.
    pub fn describe(&self, form: Form, got: &Item, run: &crate::run::Run) -> String {
        let is = |name: &&str| {
            let mut scope = Scope::new(run, "", &[]);
            self.kind(name).is_ok_and(|kind| kind.from_relay)
                && matches!(self.shape(name, form), Ok(Some(_)))
                && matches!(self.matches(name, &Map::new(), form, got, &mut scope), Ok(Ok(())))
        };
        if let Some(error) = Refusal::of(got, form) {
            return error.to_string();
        }
        // A bare byte string fits many a frame: the shape that says most is meant.
        let weight = |name: &&str| match self.shape(name, form) {
            Ok(Some(shape)) => shape.weight(),
            _ => 0,
        };
        match self.names().filter(is).max_by_key(weight) {
            Some(name) => format!("{name} {got}"),
            None => format!("{got}"),
        }
    }

    /// The content address an envelope should have, if the message is a PUSH, with the one it has.
    pub fn address(&self, form: Form, got: &Item) -> Option<(Vec<u8>, Vec<u8>)> {
        let document;
        let values: Vec<&Item> = match (form, got) {
            (Form::Array, Item::Array(frame)) => match &frame[..] {
                [Item::Uint(10), Item::Array(body)] => match &body[..] {
                    [Item::Bytes(bytes)] => {
                        document = Item::decode(bytes).ok()?;
                        match &document {
                            Item::Array(fields) => fields.iter().collect(),
                            _ => return None,
                        }
                    }
                    _ => return None,
                },
                _ => return None,
            },
            (Form::Map, Item::Map(frame)) => match &frame[..] {
                [(0, Item::Uint(5)), (1, Item::Map(fields))] => {
                    fields.iter().map(|(_, value)| value).collect()
                }
                _ => return None,
            },
            _ => return None,
        };
        let [v, enc, group, epoch, _, _, Item::Bytes(hash), ct] = values[..] else {
            return None;
        };
        let preimage: Vec<u8> = [v, enc, group, epoch, ct]
            .iter()
            .flat_map(|item| item.encode())
            .collect();
        Some((blake3(&[&preimage]).to_vec(), hash.clone()))
    }
}

/// An ERROR frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What it was written in.
    pub form: Form,
    /// `class/code`.
    pub code: String,
    /// 0 is absent.
    pub retry_after_s: u64,
    /// Empty is absent. The map form carries none but state hashes.
    pub detail: Vec<u8>,
}

impl Refusal {
    /// The ERROR a message is, if it is one.
    pub fn of(got: &Item, form: Form) -> Option<Self> {
        match (form, got) {
            (Form::Array, Item::Array(frame)) => match &frame[..] {
                [Item::Uint(15), Item::Array(body)] => match &body[..] {
                    [
                        Item::Bytes(class),
                        Item::Bytes(code),
                        Item::Uint(retry),
                        Item::Bytes(detail),
                    ] => Some(Self {
                        form,
                        code: format!(
                            "{}/{}",
                            String::from_utf8_lossy(class),
                            String::from_utf8_lossy(code)
                        ),
                        retry_after_s: *retry,
                        detail: detail.clone(),
                    }),
                    _ => None,
                },
                _ => None,
            },
            (Form::Map, Item::Map(frame)) => {
                let [(0, Item::Uint(8)), (1, Item::Map(body))] = &frame[..] else {
                    return None;
                };
                let [(1, Item::Text(class)), (2, Item::Text(code)), rest @ ..] = &body[..] else {
                    return None;
                };
                let (detail, rest) = match rest {
                    [(3, Item::Bytes(state)), rest @ ..] => (state.clone(), rest),
                    rest => (Vec::new(), rest),
                };
                let retry_after_s = match rest {
                    [] => 0,
                    [(4, Item::Uint(ms))] if *ms > 0 && ms % 1000 == 0 => ms / 1000,
                    _ => return None,
                };
                Some(Self {
                    form,
                    code: format!("{class}/{code}"),
                    retry_after_s,
                    detail,
                })
            }
            _ => None,
        }
    }

    /// The limit its detail names.
    pub fn limit(&self) -> Option<u64> {
        Some(u64::from_be_bytes(self.detail[..].try_into().ok()?))
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The relay's own words, on their way to a terminal: no control characters, and not more than a line of them.
        let code: String = self.code.chars().take(TOLD_CHARS_MAX).collect();
        write!(f, "ERROR {}", code.escape_debug())?;
        if self.retry_after_s > 0 {
            write!(f, ", retry after {} s", self.retry_after_s)?;
        }
        match self.detail.is_empty() {
            true => Ok(()),
            false => write!(f, ", detail {}", Item::Bytes(self.detail.clone())),
        }
    }
}

fn get<'a>(fields: &'a Fields, name: &str) -> Result<&'a Item, Bad> {
    fields
        .get(name)
        .ok_or_else(|| Bad(format!("field {name} is missing")))
}

fn signature_of(sign: &Sign, given: Option<&Json>, fields: &Fields, scope: &Scope<'_>) -> Result<Item, Bad> {
    let over = build(&sign.over, fields)?;
    let message = match (sign.raw, over) {
        (true, Item::Bytes(bytes)) => bytes,
        (_, item) => item.encode(),
    };
    let by = |key: &Item| {
        let Item::Bytes(public) = key else {
            return bad("a key is a byte string");
        };
        match scope.run.sign(public, &message) {
            Some(signature) => Ok(Item::Bytes(signature)),
            None => bad("nobody has the key to sign with; give the signature"),
        }
    };
    match given {
        None => match &sign.key {
            Some(key) => by(get(fields, key)?),
            None => bad(format!("{} is missing", sign.field)),
        },
        Some(json) => match (json.get("signed_by"), json.get("signatures_of")) {
            (Some(key), _) => by(&scope.item(key)?),
            (_, Some(Json::Array(keys))) => {
                let pair = |key: &Json| {
                    let key = scope.item(key)?;
                    let signature = by(&key)?;
                    Ok(Item::Array(vec![key, signature]))
                };
                Ok(Item::Array(keys.iter().map(pair).collect::<Result<_, _>>()?))
            }
            _ => scope.item(json),
        },
    }
}

/// `quorum_unsigned` is `quorum` with its signatures taken out, which is what a set's signature covers (05 §4).
fn field(fields: &Fields, name: &str) -> Result<Item, Bad> {
    if name != "quorum_unsigned" {
        return get(fields, name).cloned();
    }
    Ok(match get(fields, "quorum")? {
        Item::Array(parts) if parts.len() == 3 => {
            Item::Array(vec![parts[0].clone(), parts[1].clone(), Item::Array(Vec::new())])
        }
        other => other.clone(),
    })
}

fn build(shape: &Shape, fields: &Fields) -> Result<Item, Bad> {
    Ok(match shape {
        Shape::Uint(value) => Item::Uint(*value),
        Shape::Empty => Item::Bytes(Vec::new()),
        Shape::Field(name) => field(fields, name)?,
        Shape::Text(name) => match get(fields, name)? {
            Item::Bytes(bytes) => Item::Text(String::from_utf8_lossy(bytes).into_owned()),
            item => item.clone(),
        },
        Shape::Doc(shape) => Item::Bytes(build(shape, fields)?.encode()),
        Shape::Array(shapes) => Item::Array(
            shapes
                .iter()
                .map(|shape| build(shape, fields))
                .collect::<Result<_, _>>()?,
        ),
        Shape::Map(pairs) => {
            let mut map = Vec::new();
            for (key, optional, shape) in pairs {
                let absent = *optional && !fields.keys().any(|field| shape.names(field));
                if !absent {
                    map.push((*key, build(shape, fields)?));
                }
            }
            Item::Map(map)
        }
    })
}

fn fits(
    shape: &Shape,
    patterns: &Map<String, Json>,
    got: &Item,
    scope: &mut Scope<'_>,
) -> Result<Result<(), Mismatch>, Bad> {
    let differs = |wanted: &str| Ok(Err(format!("{got} where {wanted} is due")));
    match (shape, got) {
        (Shape::Uint(value), got) => match got == &Item::Uint(*value) {
            true => Ok(Ok(())),
            false => differs(&value.to_string()),
        },
        (Shape::Empty, got) => match got == &Item::Bytes(Vec::new()) {
            true => Ok(Ok(())),
            false => differs("an empty byte string"),
        },
        (Shape::Field(name), got) => match patterns.get(name) {
            None => Ok(Ok(())),
            Some(pattern) => Ok(scope
                .matches(pattern, got)?
                .map_err(|mismatch| format!("{name} is {mismatch}"))),
        },
        (Shape::Text(name), Item::Text(text)) => match patterns.get(name) {
            None => Ok(Ok(())),
            Some(pattern) => Ok(scope
                .matches(pattern, &Item::Bytes(text.clone().into_bytes()))?
                .map_err(|mismatch| format!("{name} is {mismatch}"))),
        },
        (Shape::Doc(shape), Item::Bytes(bytes)) => match Item::decode(bytes) {
            Ok(document) => fits(shape, patterns, &document, scope),
            Err(fault) => Ok(Err(format!("{got} is no document: {fault}"))),
        },
        (Shape::Array(shapes), Item::Array(items)) if shapes.len() == items.len() => {
            for (shape, item) in shapes.iter().zip(items) {
                if let Err(mismatch) = fits(shape, patterns, item, scope)? {
                    return Ok(Err(mismatch));
                }
            }
            Ok(Ok(()))
        }
        (Shape::Map(pairs), Item::Map(items)) => {
            let mut items = items.iter().peekable();
            for (key, optional, shape) in pairs {
                match items.next_if(|(got, _)| got == key) {
                    Some((_, item)) => {
                        if let Err(mismatch) = fits(shape, patterns, item, scope)? {
                            return Ok(Err(mismatch));
                        }
                    }
                    None if *optional => {}
                    None => return differs(&format!("key {key}")),
                }
            }
            match items.next() {
                Some((key, _)) => Ok(Err(format!("key {key} is not due in {got}"))),
                None => Ok(Ok(())),
            }
        }
        (Shape::Text(_), _) => differs("text"),
        (Shape::Doc(_), _) => differs("a byte string"),
        (Shape::Array(shapes), _) => differs(&format!("an array of {}", shapes.len())),
        (Shape::Map(_), _) => differs("a map"),
    }
}

impl Shape {
    fn parse(json: &Json) -> Result<Self, Bad> {
        Ok(match json {
            Json::Number(number) => Shape::Uint(number.as_u64().ok_or_else(|| Bad("a tag".into()))?),
            Json::String(name) => Shape::Field(name.clone()),
            Json::Array(shapes) => Shape::Array(shapes.iter().map(Shape::parse).collect::<Result<_, _>>()?),
            Json::Object(object) => {
                if let Some(shape) = object.get("doc") {
                    return Ok(Shape::Doc(Box::new(Shape::parse(shape)?)));
                }
                if let Some(Json::String(name)) = object.get("text") {
                    return Ok(Shape::Text(name.clone()));
                }
                if let Some(Json::String(name)) = object.get("bytes") {
                    return Ok(match name.is_empty() {
                        true => Shape::Empty,
                        false => Shape::Field(name.clone()),
                    });
                }
                let mut pairs = Vec::new();
                for (key, shape) in object {
                    let number = key.trim_end_matches('?');
                    let number = number.parse().map_err(|_| Bad(format!("{key} is no key")))?;
                    pairs.push((number, key.ends_with('?'), Shape::parse(shape)?));
                }
                pairs.sort_by_key(|(key, ..)| *key);
                Shape::Map(pairs)
            }
            other => return bad(format!("no shape: {other}")),
        })
    }

    /// How much a shape says about what fits it.
    fn weight(&self) -> usize {
        match self {
            Shape::Uint(_) | Shape::Empty | Shape::Text(_) => 1,
            Shape::Field(_) => 0,
            Shape::Doc(shape) => 1 + shape.weight(),
            Shape::Array(shapes) => 1 + shapes.iter().map(Shape::weight).sum::<usize>(),
            Shape::Map(pairs) => 1 + pairs.iter().map(|(.., shape)| 1 + shape.weight()).sum::<usize>(),
        }
    }

    fn names(&self, field: &str) -> bool {
        match self {
            Shape::Uint(_) | Shape::Empty => false,
            Shape::Field(name) | Shape::Text(name) => {
                name == field || (name == "quorum_unsigned" && field == "quorum")
            }
            Shape::Doc(shape) => shape.names(field),
            Shape::Array(shapes) => shapes.iter().any(|shape| shape.names(field)),
            Shape::Map(pairs) => pairs.iter().any(|(_, _, shape)| shape.names(field)),
        }
    }
}

fn kind(json: &Json) -> Result<Kind, Bad> {
    let shape = |form: &str| match &json[form] {
        Json::Null => Ok(None),
        Json::String(_) => Ok(None),
        other => Shape::parse(other).map(Some),
    };
    let from = json["from"].as_str().unwrap_or_default();
    let names = |json: &Json| -> Vec<String> {
        let list = json.as_array().into_iter().flatten();
        list.filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    };
    let sign = match &json["sign"] {
        Json::Null => None,
        sign => Some(Sign {
            field: sign["field"].as_str().unwrap_or_default().to_owned(),
            key: sign["key"].as_str().map(str::to_owned),
            over: Shape::parse(&sign["over"])?,
            raw: sign["over"].get("bytes").is_some(),
        }),
    };
    Ok(Kind {
        from_client: matches!(from, "client" | "both"),
        from_relay: matches!(from, "relay" | "both"),
        array: shape("array")?,
        map: shape("map")?,
        array_only: json["map"] == "array",
        default: json["default"].as_object().cloned().unwrap_or_default(),
        content_hash: names(&json["content_hash"]["over"]),
        sign,
    })
}

impl Schema {
    /// Whether clients send the frame, and whether the relay does.
    pub fn directions(&self, name: &str) -> (bool, bool) {
        let kind = self.kind(name);
        kind.map_or((false, false), |kind| (kind.from_client, kind.from_relay))
    }

    /// What the frame's signature covers.
    pub fn signing_input(&self, name: &str, fields: &Fields) -> Result<Vec<u8>, Bad> {
        match &self.kind(name)?.sign {
            Some(sign) => Ok(build(&sign.over, fields)?.encode()),
            None => bad(format!("{name} is not signed")),
        }
    }
}

/// The detail an ERROR has in this form: maps carry state hashes and nothing else.
pub(crate) fn detail_in(form: Form, detail: Vec<u8>) -> Vec<u8> {
    match form {
        Form::Map if detail.len() != 32 => Vec::new(),
        _ => detail,
    }
}

/// The number a field has.
pub(crate) fn number(fields: &Fields, name: &str) -> Result<u64, Bad> {
    uint(get(fields, name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_relay_says_is_told_on_one_line() {
        for (form, bytes) in [
            (
                Form::Array,
                Item::Array(vec![
                    Item::Uint(15),
                    Item::Array(vec![
                        Item::Bytes(b"\x1b]0;x\x07".to_vec()),
                        Item::Bytes(vec![b'\n'; 5_000]),
                        Item::Uint(0),
                        Item::Bytes(Vec::new()),
                    ]),
                ]),
            ),
            (
                Form::Map,
                Item::Map(vec![
                    (0, Item::Uint(8)),
                    (
                        1,
                        Item::Map(vec![
                            (1, Item::Text("\x1b]0;x\x07".into())),
                            (2, Item::Text("\n".repeat(5_000))),
                        ]),
                    ),
                ]),
            ),
        ] {
            let refusal = Refusal::of(&bytes, form).expect("an ERROR");
            for told in [refusal.to_string(), bytes.to_string()] {
                assert!(!told.contains(char::is_control) && told.len() < 500, "{told:?}");
            }
        }
        let known = Item::Array(vec![
            Item::Uint(15),
            Item::Array(vec![
                Item::Bytes(b"denied".to_vec()),
                Item::Bytes(b"writer_not_in_access_set".to_vec()),
                Item::Uint(5),
                Item::Bytes(vec![1]),
            ]),
        ]);
        let told = Refusal::of(&known, Form::Array).expect("an ERROR").to_string();
        assert_eq!(
            told,
            "ERROR denied/writer_not_in_access_set, retry after 5 s, detail h'01'"
        );
    }
}
