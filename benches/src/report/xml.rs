//! Elements and text. Everything that is not a name written here is escaped, so nothing that was measured, typed or
//! said by a relay can become markup. What comes out is well-formed XML that HTML parsers read alike.

use std::fmt::{Display, Write as _};

/// Name and value.
pub(super) type Attribute<'a> = (&'static str, &'a dyn Display);

/// A document as it grows.
#[derive(Default)]
pub(super) struct Xml {
    out: String,
}

impl Xml {
    /// The beginning of an HTML page.
    pub(super) fn html() -> Self {
        Self {
            out: "<!DOCTYPE html>\n".to_owned(),
        }
    }

    /// An element, and what `content` puts into it.
    pub(super) fn element(
        &mut self,
        name: &'static str,
        attributes: &[Attribute<'_>],
        content: impl FnOnce(&mut Self),
    ) {
        self.open(name, attributes);
        self.out.push('>');
        content(self);
        let _ = writeln!(self.out, "</{name}>");
    }

    /// An element with text in it.
    pub(super) fn words(&mut self, name: &'static str, attributes: &[Attribute<'_>], text: impl Display) {
        self.element(name, attributes, |xml| xml.text(text));
    }

    /// An element that can have no content: void in HTML, or of SVG.
    pub(super) fn leaf(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.open(name, attributes);
        self.out.push_str("/>\n");
    }

    /// Text.
    pub(super) fn text(&mut self, text: impl Display) {
        escape(&text.to_string(), &mut self.out);
    }

    /// All of it.
    pub(super) fn finish(self) -> String {
        self.out
    }

    fn open(&mut self, name: &str, attributes: &[Attribute<'_>]) {
        let _ = write!(self.out, "<{name}");
        for (name, value) in attributes {
            let _ = write!(self.out, " {name}=\"");
            escape(&value.to_string(), &mut self.out);
            self.out.push('"');
        }
    }
}

/// XML 1.0 has no place for most control characters, escaped or not.
fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(character),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            control if control.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_becomes_markup() {
        let evil = "</p><script>alert(1)</script> & \" ' \u{1b}[31m \u{ffff}";
        let mut xml = Xml::default();
        xml.element("div", &[("title", &evil)], |xml| {
            xml.words("p", &[], evil);
            xml.leaf("br", &[]);
        });
        let text = xml.finish();
        let parsed = roxmltree::Document::parse(&text).expect("well-formed");
        assert!(
            parsed
                .descendants()
                .all(|node| node.tag_name().name() != "script")
        );
        let shown = evil.replace(['\u{1b}', '\u{ffff}'], "\u{fffd}");
        let root = parsed.root_element();
        assert_eq!(root.attribute("title"), Some(&*shown));
        assert_eq!(root.first_element_child().and_then(|p| p.text()), Some(&*shown));
    }
}
