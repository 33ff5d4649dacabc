//! Runs the scripts: founds the workspace, finds out what the relay can do, then runs several scripts at once and the
//! ones that change what all share one by one.

use crate::founding::{Invite, found};
use crate::frames::Form;
use crate::interpret;
use crate::link::{Link, Stop, Target};
use crate::report::{Line, Report, Verdict};
use crate::run::Run;
use crate::script::{self, Script};
use crate::values::Bad;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

/// Scripts running at once: fewer connections than a quarter of the smallest ceiling anybody sets.
const AT_ONCE: usize = 8;

/// Before a relay that does not answer is asked again whether it is there.
const AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(300), Duration::from_secs(1)];

/// What is run, and against whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// The relay.
    pub target: Target,
    /// A bootstrap invite, and a second one for the rules about foreign workspaces.
    pub invites: Vec<Invite>,
    /// Rules, or the beginnings of their names, or numbers of cases such as `W02.13`; none means all.
    pub only: Vec<String>,
    /// A folder of scripts to run instead of those built in.
    pub scripts: Option<PathBuf>,
    /// Forms to run in.
    pub forms: Vec<Form>,
    /// Whether rules that wait out real time are run.
    pub slow: bool,
}

/// Why nothing could be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A data file can't be meant.
    #[error("the scripts: {0}")]
    Scripts(#[from] Bad),
    /// `only` names no rule.
    #[error("no rule is called {0}, nor does a case have this number")]
    NoSuchRule(String),
    /// The relay does not take an invite.
    #[error("{}", invite_refused(*.second, .code))]
    Invite {
        /// Whether it is the second of two.
        second: bool,
        /// What the relay said.
        code: String,
    },
    /// It took the invite, which founds nothing.
    #[error(
        "the invite founds no workspace ({0}): use a bootstrap invite, as a relay prints at its first start or drover \
         workspace new makes"
    )]
    NoBootstrap(String),
    /// No workspace, hence nothing to run in.
    #[error("could not found a workspace: {0}")]
    Founding(#[from] Stop),
}

/// What to do about an invite; a relay has one answer to all that is wrong with one (06 §5).
fn invite_refused(second: bool, code: &str) -> String {
    let which = match second {
        false => "the invite",
        true => "the second invite, after the first was spent",
    };
    match code {
        "quota/seats_exhausted" => format!(
            "the relay does not take {which} ({code}): it was used before or has expired, or link and code do not belong \
             together or to this relay; use a new bootstrap invite, such as drover workspace new makes"
        ),
        "quota/rate_limited" => format!(
            "the relay does not take {which} ({code}): there were too many attempts; wait a minute and run again"
        ),
        _ => format!("the relay does not take {which}: {code}"),
    }
}

/// Runs the scripts the options choose.
///
/// # Errors
/// When nothing could be run; a rule that is not kept is in the report.
pub async fn conform(options: &Options) -> Result<Report, Error> {
    let scripts = script::all(options.scripts.as_deref())?;
    if let Some(word) = options
        .only
        .iter()
        .find(|word| !scripts.iter().any(|script| is_meant(script, word)))
    {
        return Err(Error::NoSuchRule(word.clone()));
    }
    let begun = Instant::now();
    let mut chosen = Vec::new();
    for form in &options.forms {
        for script in scripts.iter().filter(|script| script.forms.contains(form)) {
            let is_chosen = options.only.is_empty() || options.only.iter().any(|word| is_meant(script, word));
            if script.probe || is_chosen {
                chosen.push((script.clone(), *form));
            }
        }
    }
    let mut id = [0; 16];
    getrandom::fill(&mut id).expect("the operating system's random source");
    let mut run = Run::new(id);
    for invite in options.invites.iter().take(2) {
        found(&options.target, &mut run, invite, &chosen).await?;
    }
    let founded = run.workspaces.len();
    let runner = Runner {
        run: Arc::new(run),
        target: options.target.clone(),
        gone: Arc::default(),
    };
    let (probes, rules): (Vec<_>, Vec<_>) = (0..).zip(chosen).partition(|(_, (script, _))| script.probe);

    let mut missing: BTreeMap<(Form, String), String> = BTreeMap::new();
    for line in runner.all_at_once(probes).await {
        if let Verdict::Failed(why) = line.verdict {
            let name = line.rule.trim_start_matches("can ").to_owned();
            missing.insert((line.form, name), why);
        }
    }
    let mut lines = Vec::new();
    let mut ready = Vec::new();
    for (index, (script, form)) in rules {
        let lacking = script.needs.iter().find_map(|need| {
            if need == "second workspace" {
                return (founded < 2).then(|| "needs a second invite".to_owned());
            }
            missing
                .get(&(form, need.clone()))
                .map(|_| format!("the relay does not offer {need}"))
        });
        let map_off = missing
            .get(&(form, "map form".to_owned()))
            .map(|_| "the relay does not speak the map form".to_owned());
        let slow = (script.slow && !options.slow).then(|| "waits out real time (--slow)".to_owned());
        match map_off.or(lacking).or(slow) {
            Some(why) => lines.push(Line::new(index, &script, form, Verdict::Skipped(why))),
            None => ready.push((index, (script, form))),
        }
    }
    let (alone, others): (Vec<_>, Vec<_>) = ready.into_iter().partition(|(_, (script, _))| script.alone);
    // Form by form: what arrays are told about limits, the map form has to know.
    for form in Form::ALL {
        let of_form = others.iter().filter(|(_, (_, its))| *its == form).cloned();
        // One by one: after each it is looked whether the relay is still there, and if not it was this one.
        let (ends, together): (Vec<_>, Vec<_>) = of_form.partition(|(_, (script, _))| script.has_an_end());
        lines.extend(runner.all_at_once(together).await);
        for (index, (script, form)) in ends {
            lines.push(runner.one(index, script, form).await);
        }
    }
    for (index, (script, form)) in alone {
        lines.push(runner.one(index, script, form).await);
    }
    lines.sort_by_key(|line| line.index);
    let missing = missing
        .into_iter()
        .map(|((form, name), why)| (format!("{name} ({})", form.name()), why))
        .collect();
    let gone = runner.gone.lock().await.take();
    Ok(Report {
        lines,
        missing,
        gone,
        took: begun.elapsed(),
    })
}

fn is_meant(script: &Script, word: &str) -> bool {
    let is_case = script.spec.split([' ', ',', ';']).any(|part| part == word);
    !script.probe && (script.rule.starts_with(word) || is_case)
}

#[derive(Clone)]
struct Runner {
    run: Arc<Run>,
    target: Target,
    /// How it showed that the relay went away. Locked while that is found out: nothing is begun meanwhile.
    gone: Arc<Mutex<Option<String>>>,
}

impl Runner {
    async fn one(&self, index: usize, script: Script, form: Form) -> Line {
        if self.gone.lock().await.is_some() {
            return Line::new(index, &script, form, Verdict::NotRun);
        }
        let begun = Instant::now();
        let verdict = match interpret::run(&script, form, &self.target, &self.run).await {
            Ok(()) if script.has_an_end() && !self.takes_connections().await => {
                self.crashed(&script.rule).await
            }
            Ok(()) => Verdict::Kept,
            Err(stop) if self.is_gone().await => Verdict::CutOff(stop.to_string()),
            Err(stop) => Verdict::Failed(stop.to_string()),
        };
        Line {
            took: begun.elapsed(),
            ..Line::new(index, &script, form, verdict)
        }
    }

    /// Whether the relay still upgrades a new connection, or does so in a moment.
    async fn takes_connections(&self) -> bool {
        Link::open(&self.target, Form::Array).await.is_ok() || !self.is_gone().await
    }

    /// The end that this rule asks for was the end of the relay.
    async fn crashed(&self, rule: &str) -> Verdict {
        let mut gone = self.gone.lock().await;
        let how = gone.take().unwrap_or_default();
        *gone = Some(format!("with the connection it had to end in {rule}: {how}"));
        Verdict::Failed(format!(
            "the relay ended the connection as it has to, and then took no new one: {how}"
        ))
    }

    /// Whether the relay is not there any more, which is why a rule failed just now. It is asked several times: it may
    /// need a moment to accept again.
    async fn is_gone(&self) -> bool {
        let mut gone = self.gone.lock().await;
        let mut pauses = AGAIN_AFTER.into_iter();
        while gone.is_none() {
            let Err(stop) = self.answers().await else {
                return false;
            };
            match pauses.next() {
                Some(pause) => tokio::time::sleep(pause).await,
                None => *gone = Some(stop.to_string()),
            }
        }
        true
    }

    async fn answers(&self) -> Result<(), Stop> {
        Link::open(&self.target, Form::Array).await?.sign_of_life().await
    }

    async fn all_at_once(&self, scripts: Vec<(usize, (Script, Form))>) -> Vec<Line> {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let mut tasks = JoinSet::new();
        for (index, (script, form)) in scripts {
            let (runner, places) = (self.clone(), places.clone());
            tasks.spawn(async move {
                let _place = places.acquire().await;
                runner.one(index, script, form).await
            });
        }
        tasks.join_all().await
    }
}

/// What a rule that fails is waited for unless somebody asks for more: any relay answers in a fraction of it.
pub const PATIENCE: Duration = Duration::from_secs(10);
