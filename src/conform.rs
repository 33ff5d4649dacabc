//! `drover conform`: checks any relay by its URL. What is checked, and how, is in `vectors/`.

use crate::cli::Failure;
use crate::output::Output;
use clap::{Args, ValueEnum};
use drover_client::{Endpoint, InviteLink, RelayUrl, Tls};
use drover_vectors::{Error, Form, Invite, Options, PATIENCE, Target, conform};
use drover_wire::invite::canonical_code;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What follows `drover conform`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("invites").required(true).multiple(true))]
pub(crate) struct ConformArgs {
    /// The relay, such as ws://127.0.0.1:8443 or wss://relay.example/relay
    url: String,
    /// A bootstrap invite of the relay, not redeemed yet: its link and its code. A second one adds the rules about
    /// foreign workspaces
    #[arg(long, num_args = 2, value_names = ["LINK", "CODE"], group = "invites")]
    invite: Vec<String>,
    /// The same from what the relay or `drover workspace new` printed
    #[arg(long, value_name = "FILE", group = "invites")]
    bootstrap_from_log: Vec<PathBuf>,
    /// Trust this certificate authority, or this self-signed certificate, for wss
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Only rules whose name begins so, or that prove this case (W02.13)
    #[arg(long, value_name = "RULE")]
    only: Vec<String>,
    /// Run the scripts of this folder instead of those built in
    #[arg(long, value_name = "DIR")]
    scripts: Option<PathBuf>,
    /// Only this form; both otherwise
    #[arg(long, value_enum)]
    form: Vec<FormArg>,
    /// Also rules that wait out real time: deadlines and windows, some minutes
    #[arg(long)]
    slow: bool,
    /// Rules that only this project decides count as well
    #[arg(long)]
    strict: bool,
    /// How long one answer may take
    #[arg(long, value_name = "SECONDS", default_value_t = PATIENCE.as_secs(), value_parser = clap::value_parser!(u64).range(1..=600))]
    patience: u64,
    /// Write JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormArg {
    Array,
    Map,
}

/// Runs it, prints the table, and fails with 1 if a rule that counts is not kept, with 75 if the relay went away.
pub(crate) fn run(args: &ConformArgs, out: &mut Output<'_>) -> Result<(), Failure> {
    let options = options(args)?;
    // An invite is good for one run: what would lose its report is found out before it is redeemed.
    let json = create(args.json.as_deref())?;
    let junit = create(args.junit.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::unavailable(format!("no runtime: {error}")))?;
    let report = runtime.block_on(conform(&options)).map_err(|error| match error {
        Error::NoSuchRule(_) | Error::Invite { .. } | Error::NoBootstrap(_) => {
            Failure::usage(error.to_string())
        }
        Error::Founding(_) => Failure::unavailable(error.to_string()),
        Error::Scripts(_) => Failure::config(error.to_string()),
    })?;
    let _ = out.print(&report.table());
    write(json, || format!("{:#}\n", report.json()))?;
    write(junit, || report.junit())?;
    let failed = match report.failures(args.strict).count() {
        0 => None,
        failed => Some(format!("{failed} rules are not kept")),
    };
    match (report.ended_early(), failed) {
        (None, None) => Ok(()),
        (None, Some(failed)) => Err(Failure::found(failed)),
        (Some(why), None) => Err(Failure::cut_short(why)),
        (Some(why), Some(failed)) => Err(Failure::cut_short(format!("{why}; {failed}"))),
    }
}

/// A report's file, and its name for complaints.
type ReportFile<'a> = Option<(&'a Path, File)>;

fn create(path: Option<&Path>) -> Result<ReportFile<'_>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let file = File::create(path).map_err(|error| unwritten(path, &error))?;
    Ok(Some((path, file)))
}

fn write(file: ReportFile<'_>, text: impl FnOnce() -> String) -> Result<(), Failure> {
    let Some((path, mut file)) = file else {
        return Ok(());
    };
    file.write_all(text().as_bytes())
        .map_err(|error| unwritten(path, &error))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::output(format!("{}: {error}", path.display()))
}

fn options(args: &ConformArgs) -> Result<Options, Failure> {
    let url: RelayUrl = args
        .url
        .parse()
        .map_err(|error| Failure::usage(format!("{}: {error}", args.url)))?;
    let tls = match &args.ca {
        Some(path) => Some(Tls::ca_pem(&read(path)?).map_err(|error| Failure::usage(error.to_string()))?),
        None => None,
    };
    let mut invites = Vec::new();
    for pair in args.invite.chunks_exact(2) {
        invites.push(invite(&pair[0], &pair[1])?);
    }
    for path in &args.bootstrap_from_log {
        let found = in_log(&String::from_utf8_lossy(&read(path)?))?;
        if found.is_empty() {
            let what = "no invite in it; the code is printed at the first start only";
            return Err(Failure::usage(format!("{}: {what}", path.display())));
        }
        invites.extend(found);
    }
    let forms = match args.form[..] {
        [] => Form::ALL.to_vec(),
        _ => args
            .form
            .iter()
            .map(|form| match form {
                FormArg::Array => Form::Array,
                FormArg::Map => Form::Map,
            })
            .collect(),
    };
    Ok(Options {
        target: Target {
            endpoint: Endpoint { url, tls },
            patience: Duration::from_secs(args.patience),
        },
        invites,
        only: args.only.clone(),
        scripts: args.scripts.clone(),
        forms,
        slow: args.slow,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

fn invite(link: &str, code: &str) -> Result<Invite, Failure> {
    let link: InviteLink = link
        .parse()
        .map_err(|_| Failure::usage("--invite takes a link such as https://HOST/join/TOKEN and a code"))?;
    // Said here, it does not count as a wrong guess there.
    if canonical_code(code).is_none() {
        let what = "the invite's code must be its twelve letters and digits, such as 28T5-CY4T-QKFF";
        return Err(Failure::usage(what));
    }
    Ok(Invite {
        token: link.token.0,
        code: code.to_owned(),
    })
}

/// Every link that is followed by a code, in order.
fn in_log(text: &str) -> Result<Vec<Invite>, Failure> {
    let mut link = None;
    let mut invites = Vec::new();
    for line in text.lines() {
        let last = line.split_whitespace().last().unwrap_or_default();
        if line.contains("invite link") {
            link = Some(last);
        } else if line.contains("invite code")
            && let Some(link) = link.take()
        {
            invites.push(invite(link, last)?);
        }
    }
    Ok(invites)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invites_are_found_in_a_log() {
        let log = "weald:   invite link  https://relay.example/join/00112233445566778899aabbccddeeff\n\
                   weald:   invite code  28T5-CY4T-QKFF\nweald:   (both go into the app)\n\
                   weald:   invite link  https://relay.example/join/ffffffffffffffffffffffffffffffff\n\
                   weald:   genesis key  00\n";
        let found = in_log(log).unwrap();
        assert_eq!(found.len(), 1, "the second has no code any more");
        assert_eq!(
            (found[0].token[1], found[0].code.as_str()),
            (0x11, "28T5-CY4T-QKFF")
        );
        assert!(in_log("weald:   invite link  nonsense\nweald: invite code  x").is_err());
    }
}
