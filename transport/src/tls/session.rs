//! One TLS connection as plain data: ciphertext in, plaintext out and the other way round. Built on rustls's
//! unbuffered interface, which keeps no buffers of its own: an idle connection is its keys and nothing else.

use crate::chunk::Chunk;
use bytes::{Buf, BytesMut};
use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use std::sync::Arc;

/// Most ciphertext kept because a record or handshake message is incomplete. A record is at most 16 KiB and some; a
/// handshake message may need more than one, but none of a client's does by much.
const INCOMPLETE_BYTES_MAX: usize = 65_536;
/// Largest plaintext of a record.
const RECORD_BYTES: usize = 16_384;
/// What a record adds to its plaintext: head, content type and tag.
const RECORD_OVERHEAD: usize = 5 + 1 + 16;

/// What came of some ciphertext.
#[derive(Debug)]
pub(crate) enum Step {
    /// One record's plaintext.
    Plain(BytesMut),
    /// Nothing more until more ciphertext comes.
    Blocked,
    /// The peer has ended its direction.
    Ended,
}

/// The connection can't go on. An alert may have been left in [`TlsSession::take_unsent`].
#[derive(Debug)]
pub(crate) struct Sealed;

/// See the module.
pub(crate) struct TlsSession {
    rustls: UnbufferedServerConnection,
    /// Ciphertext in that is incomplete, or that a paused connection has not looked at.
    incoming: BytesMut,
    /// Ciphertext out: of the handshake, or what the socket did not take.
    unsent: Vec<u8>,
    established: bool,
}

impl TlsSession {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Result<Box<Self>, rustls::Error> {
        Ok(Box::new(Self {
            rustls: UnbufferedServerConnection::new(config)?,
            incoming: BytesMut::new(),
            unsent: Vec::new(),
            established: false,
        }))
    }

    /// Whether the handshake is done.
    pub(crate) fn is_established(&self) -> bool {
        self.established
    }

    /// Goes through `cipher` up to the next record of plaintext. Call again until it is blocked; what is incomplete
    /// is then kept. Plaintext is put into `plain`, the shard's chunk: rustls decrypts into a buffer of its own.
    pub(crate) fn open(&mut self, cipher: &mut BytesMut, plain: &mut Chunk) -> Result<Step, Sealed> {
        if !self.incoming.is_empty() {
            self.incoming.extend_from_slice(cipher);
            *cipher = std::mem::take(&mut self.incoming);
        }
        loop {
            let UnbufferedStatus { mut discard, state } = self.rustls.process_tls_records(cipher);
            let step = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => match traffic.next_record() {
                    Some(Ok(record)) => {
                        // No early data is accepted: traffic means that the handshake is done, and the answer to what
                        // came together with the peer's Finished may be the last thing that is written.
                        self.established = true;
                        discard += record.discard;
                        Some(Step::Plain(plain.copy(record.payload)))
                    }
                    Some(Err(_)) => return Err(Sealed),
                    None => None,
                },
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    let from = self.unsent.len();
                    match data.encode(&mut []) {
                        Err(EncodeError::InsufficientSize(size)) => {
                            self.unsent.resize(from + size.required_size, 0);
                            data.encode(&mut self.unsent[from..]).map_err(|_| Sealed)?;
                        }
                        Ok(_) | Err(EncodeError::AlreadyEncoded) => {}
                    }
                    None
                }
                Ok(ConnectionState::TransmitTlsData(transmit)) => {
                    transmit.done();
                    None
                }
                Ok(ConnectionState::BlockedHandshake) => Some(Step::Blocked),
                Ok(ConnectionState::WriteTraffic(_)) => {
                    self.established = true;
                    Some(Step::Blocked)
                }
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Some(Step::Ended),
                // No early data is ever accepted.
                Ok(_) => return Err(Sealed),
                Err(_) => {
                    cipher.clear();
                    self.queue_alert();
                    return Err(Sealed);
                }
            };
            cipher.advance(discard.min(cipher.len()));
            if let Some(step) = step {
                if matches!(step, Step::Blocked) {
                    self.keep(cipher);
                    if self.incoming.len() > INCOMPLETE_BYTES_MAX {
                        return Err(Sealed);
                    }
                }
                return Ok(step);
            }
        }
    }

    /// After an error rustls has an alert to send.
    fn queue_alert(&mut self) {
        let from = self.unsent.len();
        if let Ok(ConnectionState::EncodeTlsData(mut data)) = self.rustls.process_tls_records(&mut []).state
            && let Err(EncodeError::InsufficientSize(size)) = data.encode(&mut [])
        {
            self.unsent.resize(from + size.required_size, 0);
            if data.encode(&mut self.unsent[from..]).is_err() {
                self.unsent.truncate(from);
            }
        }
    }

    /// Puts ciphertext aside in a buffer of the connection's own.
    pub(crate) fn keep(&mut self, cipher: &mut BytesMut) {
        if !cipher.is_empty() {
            self.incoming.extend_from_slice(cipher);
        }
        *cipher = BytesMut::new();
    }

    /// Takes back what was put aside.
    pub(crate) fn take_kept(&mut self) -> BytesMut {
        std::mem::take(&mut self.incoming)
    }

    /// Encrypts `plain` into `cipher`, in records as large as they may be. Only once established.
    pub(crate) fn seal(&mut self, plain: &[u8], cipher: &mut Vec<u8>) -> Result<(), Sealed> {
        // Key updates and the like go first.
        cipher.append(&mut self.unsent);
        loop {
            match self.rustls.process_tls_records(&mut []).state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    let from = cipher.len();
                    let records = plain.len().div_ceil(RECORD_BYTES);
                    cipher.resize(from + plain.len() + records * RECORD_OVERHEAD, 0);
                    let sealed = match traffic.encrypt(plain, &mut cipher[from..]) {
                        Err(EncryptError::InsufficientSize(size)) => {
                            cipher.resize(from + size.required_size, 0);
                            traffic.encrypt(plain, &mut cipher[from..])
                        }
                        sealed => sealed,
                    };
                    cipher.truncate(from + sealed.map_err(|_| Sealed)?);
                    return Ok(());
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    let from = cipher.len();
                    if let Err(EncodeError::InsufficientSize(size)) = data.encode(&mut []) {
                        cipher.resize(from + size.required_size, 0);
                        data.encode(&mut cipher[from..]).map_err(|_| Sealed)?;
                    }
                }
                Ok(ConnectionState::TransmitTlsData(transmit)) => transmit.done(),
                // The peer ending its direction does not end ours; it is reported once.
                Ok(ConnectionState::PeerClosed) => {}
                _ => return Err(Sealed),
            }
        }
    }

    /// Queues the alert that ends our direction.
    pub(crate) fn end(&mut self) {
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = self.rustls.process_tls_records(&mut []).state
        {
            let mut alert = [0; 64];
            if let Ok(bytes) = traffic.queue_close_notify(&mut alert) {
                self.unsent.extend_from_slice(&alert[..bytes]);
            }
        }
    }

    /// Whether ciphertext waits to be written.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Takes the ciphertext that waits to be written.
    pub(crate) fn take_unsent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unsent)
    }

    /// Puts back what the socket did not take. Nothing may have been queued since.
    pub(crate) fn put_unsent(&mut self, bytes: &[u8]) {
        debug_assert!(self.unsent.is_empty());
        self.unsent = bytes.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TlsSource;
    use crate::tls::source::Certificates;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;
    use std::io::{Read as _, Write as _};

    /// A request that comes together with the client's Finished is answered, though nothing comes after it.
    #[test]
    fn it_is_established_with_the_first_record() {
        let dir = tempfile::tempdir().unwrap();
        let source = TlsSource::Dev {
            dir: dir.path().into(),
        };
        let certificates = Certificates::open(&source, "relay.example").unwrap().unwrap();
        let mut session = TlsSession::new(certificates.current()).unwrap();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(dir.path().join("dev-cert.pem")).unwrap())
            .unwrap();
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "relay.example".try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let sent = |client: &mut ClientConnection| {
            let mut cipher = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut cipher).unwrap();
            }
            BytesMut::from(&cipher[..])
        };
        let mut plain = Chunk::default();

        let step = session.open(&mut sent(&mut client), &mut plain).unwrap();
        assert!(matches!(step, Step::Blocked) && !session.is_established());
        let answer = session.take_unsent();
        client.read_tls(&mut &answer[..]).unwrap();
        client.process_new_packets().unwrap();
        client.writer().write_all(b"request").unwrap();

        let step = session.open(&mut sent(&mut client), &mut plain).unwrap();
        let Step::Plain(request) = step else {
            panic!("{step:?} instead of the request");
        };
        assert_eq!(&request[..], b"request");
        assert!(session.is_established());
        let mut cipher = Vec::new();
        session.seal(b"answer", &mut cipher).unwrap();
        client.read_tls(&mut &cipher[..]).unwrap();
        client.process_new_packets().unwrap();
        let mut answer = [0; 6];
        client.reader().read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
    }
}
