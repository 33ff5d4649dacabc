//! From an address to an open WebSocket: TCP, TLS, upgrade, each bounded in time and size.

use bytes::Bytes;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::error::Error;
use crate::limits::{CONNECT_TIMEOUT, MESSAGE_BYTES_MAX, WRITE_BUFFER_BYTES_MAX};
use crate::tls::Tls;
use crate::url::RelayUrl;

/// A relay's address and how its certificate is judged.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The address.
    pub url: RelayUrl,
    /// For `wss`; `None` means [`Tls::system`].
    pub tls: Option<Tls>,
}

impl From<RelayUrl> for Endpoint {
    fn from(url: RelayUrl) -> Self {
        Self { url, tls: None }
    }
}

pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

pub(crate) type WebSocket = WebSocketStream<Box<dyn Duplex>>;

/// Connects and upgrades.
pub(crate) async fn open(endpoint: &Endpoint) -> Result<WebSocket, Error> {
    tokio::time::timeout(CONNECT_TIMEOUT, upgrade(endpoint))
        .await
        .map_err(|_| Error::Timeout)?
}

async fn upgrade(endpoint: &Endpoint) -> Result<WebSocket, Error> {
    let url = &endpoint.url;
    let tcp = TcpStream::connect((url.host(), url.port())).await?;
    // Small frames must not wait for acknowledgements of earlier ones.
    tcp.set_nodelay(true)?;
    let stream: Box<dyn Duplex> = if url.is_tls() {
        let tls = match &endpoint.tls {
            Some(tls) => tls.clone(),
            None => Tls::system()?,
        };
        let name = ServerName::try_from(url.host().to_owned())
            .map_err(|_| Error::Tls("host is no valid server name".into()))?;
        let connector = tokio_rustls::TlsConnector::from(tls.config());
        Box::new(connector.connect(name, tcp).await.map_err(tls_or_io)?)
    } else {
        Box::new(tcp)
    };
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
        .max_write_buffer_size(WRITE_BUFFER_BYTES_MAX);
    let (socket, _) =
        tokio_tungstenite::client_async_with_config(url.to_string(), stream, Some(config)).await?;
    Ok(socket)
}

/// A certificate that is not accepted stays unaccepted; a reset connection may work next time.
fn tls_or_io(error: std::io::Error) -> Error {
    match error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
    {
        Some(inner) => Error::Tls(inner.to_string()),
        None => error.into(),
    }
}

/// What a message of the WebSocket layer means: a frame's bytes, nothing (control), or the end.
pub(crate) fn payload(message: Option<Result<Message, tungstenite::Error>>) -> Result<Option<Bytes>, Error> {
    match message {
        None => Err(Error::Closed { code: None }),
        Some(Err(error)) => Err(error.into()),
        Some(Ok(Message::Binary(bytes))) => Ok(Some(bytes)),
        Some(Ok(Message::Close(frame))) => Err(Error::Closed {
            code: frame.map(|frame| frame.code.into()),
        }),
        Some(Ok(Message::Text(_))) => Err(Error::Protocol("text message")),
        Some(Ok(_)) => Ok(None),
    }
}
