//! Pages of the public listener that are not the transport's own: what the binary adds to them.

/// A page, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Status code and reason, such as `200 OK`.
    pub status: &'static str,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

/// What the binary adds to the public listener. Asked on a shard's thread, which serves nobody else meanwhile: answers
/// come from memory.
pub trait PublicPages: Send + Sync {
    /// The page at `path` (no query) for whoever presents this `Authorization` header; `None`: there is no such page.
    /// HEAD is answered from it too, and other methods are refused.
    fn page(&self, path: &str, authorization: Option<&[u8]>) -> Option<Page>;
}
