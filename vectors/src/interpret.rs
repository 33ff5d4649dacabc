//! Runs one script against a relay, step by step. Whatever comes must be the next thing that is due: a message too many
//! is as wrong as one too few, and that nothing more came is shown at the end by a fence, never by waiting.

use crate::cbor::Item;
use crate::frames::{Fields, Form, Refusal, Schema, detail_in, number};
use crate::link::{Link, Next, Stop, Target, fail};
use crate::run::{Head, blake3};
use crate::script::{Exhausts, Frame, Message, Script, Step, Until, What};
use crate::values::{Bad, Scope, bad, uint};
use bytes::Bytes;
use drover_client::raw::Outgoing;
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Frames sent before their answers are read, when a budget is used up: less than a queue holds.
const PIPELINED: u64 = 100;

/// A script while it runs.
pub(crate) struct Interpreter<'r> {
    target: &'r Target,
    scope: Scope<'r>,
    rule: &'r str,
    form: Form,
    links: BTreeMap<String, Link>,
}

/// Runs a script in a form; what it expects must come, and nothing else.
///
/// # Errors
/// Which step failed and how.
pub(crate) async fn run(
    script: &Script,
    form: Form,
    target: &Target,
    run: &crate::run::Run,
) -> Result<(), Stop> {
    let scope = Scope::new(run, script.scope_name(form), &script.outsiders);
    let mut interpreter = Interpreter::new(target, &script.rule, scope, form);
    interpreter.steps(&script.steps).await?;
    let open: Vec<String> = interpreter.links.keys().cloned().collect();
    for who in open {
        if !interpreter.link(&who)?.closed {
            interpreter
                .fence(&who)
                .await
                .map_err(|stop| placed(stop, &format!("at the end, {who} is fenced")))?;
        }
    }
    Ok(())
}

fn placed(stop: Stop, place: &str) -> Stop {
    match stop {
        Stop::Failed(why) => Stop::Failed(format!("{place}: {why}")),
        Stop::Script(Bad(why)) => Stop::Script(Bad(format!("{place}: {why}"))),
    }
}

impl<'r> Interpreter<'r> {
    pub(crate) fn new(target: &'r Target, rule: &'r str, scope: Scope<'r>, form: Form) -> Self {
        Self {
            target,
            scope,
            rule,
            form,
            links: BTreeMap::new(),
        }
    }

    /// What the steps saved.
    pub(crate) fn into_saved(self) -> HashMap<String, Item> {
        self.scope.saved
    }

    pub(crate) async fn steps(&mut self, steps: &[Step]) -> Result<(), Stop> {
        for (index, step) in steps.iter().enumerate() {
            let verb = verb(&step.what);
            Box::pin(self.step(step))
                .await
                .map_err(|stop| placed(stop, &format!("step {}, {} {verb}", index + 1, step.who)))?;
        }
        Ok(())
    }

    fn link(&mut self, who: &str) -> Result<&mut Link, Stop> {
        match self.links.get_mut(who) {
            Some(link) => Ok(link),
            None => Err(Bad(format!("{who} never opened a connection")).into()),
        }
    }

    async fn step(&mut self, step: &Step) -> Result<(), Stop> {
        let who = step.who.as_str();
        match &step.what {
            What::Opens {
                groups,
                version,
                until,
                form,
            } => {
                let form = form.unwrap_or(self.form);
                let link = Link::open(self.target, form).await?;
                self.links.insert(who.to_owned(), link);
                let groups = match groups {
                    Some(groups) => groups.clone(),
                    None if self.scope.is_outsider(step.actor()) => json!(["group(main)", "group(root2)"]),
                    None => json!(["group(main)", "group(root)"]),
                };
                self.open(who, step.actor(), &groups, *version, *until).await
            }
            What::Sends { message, form } => self.send(who, message, form.unwrap_or(self.form)).await,
            What::Gets { frame } => self.gets(who, frame).await,
            What::GetsAll { frames } => self.gets_all(who, frames).await,
            What::Refused {
                code,
                retry_after,
                detail,
                closes,
            } => {
                self.refused(who, code, retry_after, detail).await?;
                match closes {
                    true => self.ends(who, None).await,
                    false => self.fence(who).await,
                }
            }
            What::Closed { status } => self.ends(who, *status).await,
            What::Fences => self.fence(who).await,
            What::Closes => {
                self.link(who)?.send(Outgoing::Close).await?;
                self.ends(who, None).await
            }
            What::Exhausts(exhausts) => self.exhaust(who, exhausts).await,
            What::Publishes { change, refused } => {
                self.publish(who, step.actor(), change, refused.as_ref()).await
            }
            What::Lets { values } => {
                for (name, json) in values {
                    let item = self.scope.item(json)?;
                    self.scope.saved.insert(name.clone(), item);
                }
                Ok(())
            }
            What::Repeats { times, steps } => {
                let times = uint(&self.scope.item(times)?)?;
                for n in 0..times {
                    self.scope.saved.insert("n".into(), Item::Uint(n));
                    self.steps(steps)
                        .await
                        .map_err(|stop| placed(stop, &format!("round {}", n + 1)))?;
                }
                Ok(())
            }
            What::Waits { seconds } => {
                tokio::time::sleep(Duration::from_secs(*seconds)).await;
                Ok(())
            }
        }
    }

    /// CONNECT and AUTH as far as the script wants it (02 §4, §5).
    async fn open(
        &mut self,
        who: &str,
        actor: &str,
        groups: &Json,
        version: u64,
        until: Until,
    ) -> Result<(), Stop> {
        if until == Until::Fresh {
            return Ok(());
        }
        let form = self.link(who)?.form;
        let connect = frame(
            "CONNECT",
            json!({"version": version, "groups": groups, "sent_at": {"now": 0}}),
        );
        self.send(who, &Message::Frame(connect), form).await?;
        self.gets(who, &frame("CONNECT_ACK", json!({"version": version.min(4)})))
            .await?;
        self.gets(
            who,
            &frame("AUTH_CHALLENGE", json!({"challenge": {"save": "challenge"}})),
        )
        .await?;
        if until == Until::Challenged {
            return Ok(());
        }
        let key = format!("key({actor})");
        let auth = frame("AUTH", json!({"device_key": key, "challenge": "$challenge"}));
        self.send(who, &Message::Frame(auth), form).await?;
        let ack = match form {
            Form::Array => json!({}),
            Form::Map => json!({"device_key": key}),
        };
        self.gets(who, &frame("AUTH_ACK", ack)).await
    }

    fn encode(&self, frame: &Frame, form: Form) -> Result<Vec<u8>, Bad> {
        let fields = Schema::get().fields(&frame.name, &frame.fields, &self.scope)?;
        Schema::get().encode(&frame.name, &fields, form)
    }

    async fn send(&mut self, who: &str, message: &Message, form: Form) -> Result<(), Stop> {
        let outgoing = match message {
            Message::Frame(frame) => Outgoing::Binary(self.encode(frame, form)?.into()),
            Message::Raw(expression) => Outgoing::Binary(self.scope.bytes(expression)?.into()),
            Message::Text(text) => Outgoing::Text(text.clone()),
            Message::Ping => Outgoing::Ping(Bytes::from_static(b"conform")),
        };
        let link = self.link(who)?;
        if matches!(message, Message::Frame(frame) if frame.name == "CONNECT") && !link.settled {
            link.form = form;
        }
        match (message, outgoing) {
            (Message::Frame(frame), Outgoing::Binary(bytes)) if frame.name == "JOIN_RESERVE" => {
                link.send_again_if_told(bytes).await?;
            }
            (_, outgoing) => link.send(outgoing).await?,
        }
        if matches!(message, Message::Ping) {
            return match link.next("the answer to a ping").await? {
                Next::Pong => Ok(()),
                _ => fail("something else than the answer to a ping"),
            };
        }
        Ok(())
    }

    async fn gets(&mut self, who: &str, frame: &Frame) -> Result<(), Stop> {
        let form = self.link(who)?.form;
        if !Schema::get().is_sent(&frame.name, form)? {
            return Ok(());
        }
        let item = self.link(who)?.message(&frame.name).await?;
        match Schema::get().matches(&frame.name, &frame.fields, form, &item, &mut self.scope)? {
            Ok(()) => {}
            Err(mismatch) => {
                let got = Schema::get().describe(form, &item, self.scope.run);
                return fail(format!("{got} instead of {}: {mismatch}", frame.name));
            }
        }
        let link = self.link(who)?;
        match frame.name.as_str() {
            "CONNECT_ACK" => link.settled = true,
            "AUTH_ACK" => link.ready = true,
            _ => {}
        }
        Ok(())
    }

    async fn gets_all(&mut self, who: &str, frames: &[Frame]) -> Result<(), Stop> {
        let form = self.link(who)?.form;
        let mut due: Vec<&Frame> = Vec::new();
        for frame in frames {
            if Schema::get().is_sent(&frame.name, form)? {
                due.push(frame);
            }
        }
        while !due.is_empty() {
            let item = self.link(who)?.message("one of several messages").await?;
            let mut found = None;
            for (index, frame) in due.iter().enumerate() {
                if Schema::get()
                    .matches(&frame.name, &frame.fields, form, &item, &mut self.scope)?
                    .is_ok()
                {
                    found = Some(index);
                    break;
                }
            }
            match found {
                Some(index) => drop(due.remove(index)),
                None => {
                    let got = Schema::get().describe(form, &item, self.scope.run);
                    return fail(format!("{got} is none of the {} messages still due", due.len()));
                }
            }
        }
        Ok(())
    }

    async fn refused(
        &mut self,
        who: &str,
        code: &str,
        retry_after: &Json,
        detail: &Json,
    ) -> Result<(), Stop> {
        let run = self.scope.run;
        let refusal = self.link(who)?.refusal(code, run).await?;
        if refusal.code != code {
            return fail(format!("{refusal} instead of {code}"));
        }
        if let Err(mismatch) = self
            .scope
            .matches(retry_after, &Item::Uint(refusal.retry_after_s))?
        {
            return fail(format!("{refusal}: retry_after is {mismatch}"));
        }
        // A map says no limit, so there is nothing to compare; a state hash it says.
        if let Json::Object(_) = detail {
            let lost = refusal.form == Form::Map && refusal.detail.is_empty();
            if !lost
                && let Err(mismatch) = self.scope.matches(detail, &Item::Bytes(refusal.detail.clone()))?
            {
                return fail(format!("{refusal}: detail is {mismatch}"));
            }
            return Ok(());
        }
        let due = match self.scope.item(detail)? {
            Item::Bytes(bytes) => detail_in(refusal.form, bytes),
            other => return Err(Bad(format!("no detail: {other}")).into()),
        };
        match refusal.detail == due {
            true => Ok(()),
            false => fail(format!("{refusal}: detail {} is due", Item::Bytes(due))),
        }
    }

    async fn ends(&mut self, who: &str, status: Option<u16>) -> Result<(), Stop> {
        let run = self.scope.run;
        let got = self.link(who)?.end(run).await?;
        match status {
            Some(due) if got != Some(due) => fail(format!("closed with status {got:?}, not {due}")),
            _ => Ok(()),
        }
    }

    /// A request that is always answered: its answer must be the next message, so nothing else was on its way.
    async fn fence(&mut self, who: &str) -> Result<(), Stop> {
        let run = self.scope.run;
        let link = self.link(who)?;
        let (ask, fields, answer) = match link.ready {
            true => ("ACCESS_QUERY", Fields::new(), "ACCESS_STATE"),
            false => {
                let token = Item::Bytes(vec![0; 16]);
                (
                    "JOIN_RECORD",
                    Fields::from([("token".into(), token)]),
                    "JOIN_RECORD_ANSWER",
                )
            }
        };
        let form = link.form;
        link.send_frame(ask, &fields, form).await?;
        let what = format!("the answer to a fence ({answer})");
        let item = link.message(&what).await?;
        let none = Map::new();
        if Schema::get()
            .matches(answer, &none, form, &item, &mut self.scope)?
            .is_ok()
        {
            return Ok(());
        }
        // A script that used up the fence's own budget is told so, in its turn as well.
        match Form::ALL.into_iter().find_map(|form| Refusal::of(&item, form)) {
            Some(refusal) if refusal.code == "quota/rate_limited" && refusal.retry_after_s == 60 => Ok(()),
            _ => fail(format!(
                "{} instead of {what}",
                Schema::get().describe(form, &item, run)
            )),
        }
    }

    /// Sends until refused. A relay may have another figure than the specification, but has to name it, and to take
    /// exactly that many.
    async fn exhaust(&mut self, who: &str, exhausts: &Exhausts) -> Result<(), Stop> {
        let mut sent = 0;
        let mut refused = 0;
        let mut limit = None;
        let form = self.link(who)?.form;
        let answered = match &exhausts.answer {
            Some(frame) => Schema::get().is_sent(&frame.name, form)?,
            None => false,
        };
        let most = 20 * exhausts.figure;
        while refused == 0 {
            if sent > most {
                return fail(format!("{sent} were accepted and none refused"));
            }
            // Without answers nothing fills up, and fences are few.
            let batch = match answered {
                true => PIPELINED.min(exhausts.figure + 1),
                false => (exhausts.figure + 1).max(sent),
            };
            for n in sent..sent + batch {
                self.scope.saved.insert("n".into(), Item::Uint(n));
                self.send(who, &exhausts.message, self.form).await?;
            }
            if !answered {
                let link = self.link(who)?;
                let (ask, answer) = ("ACCESS_QUERY", "ACCESS_STATE");
                link.send_frame(ask, &Fields::new(), form).await?;
                loop {
                    let item = self.link(who)?.message(answer).await?;
                    if Schema::get()
                        .matches(answer, &Map::new(), form, &item, &mut self.scope)?
                        .is_ok()
                    {
                        break;
                    }
                    self.over_budget(form, &item, exhausts, &mut limit)?;
                    refused += 1;
                }
            } else {
                for n in sent..sent + batch {
                    let item = self.link(who)?.message("an answer").await?;
                    self.scope.saved.insert("n".into(), Item::Uint(n));
                    let frame = exhausts.answer.as_ref().expect("it is answered");
                    match Schema::get().matches(&frame.name, &frame.fields, form, &item, &mut self.scope)? {
                        Ok(()) if refused > 0 && !exhausts.aligned => {
                            return fail("accepted again after a refusal");
                        }
                        Ok(()) => {}
                        Err(_) => {
                            self.over_budget(form, &item, exhausts, &mut limit)?;
                            refused += 1;
                        }
                    }
                }
            }
            sent += batch;
        }
        let accepted = sent - refused;
        if let Some(limit) = limit {
            self.scope.run.learn_limit(self.rule, limit);
        }
        // Maps name no limit: what the array form was told counts, and the figure before anything was.
        let limit = limit.or_else(|| self.scope.run.known_limit(self.rule));
        let limit = limit.unwrap_or(exhausts.figure);
        let fits = match exhausts.aligned {
            true => (limit..=2 * limit).contains(&accepted),
            false => accepted == limit,
        };
        match fits {
            true => Ok(()),
            false => fail(format!("{accepted} were accepted, the limit is {limit}")),
        }
    }

    fn over_budget(
        &self,
        form: Form,
        item: &Item,
        exhausts: &Exhausts,
        limit: &mut Option<u64>,
    ) -> Result<(), Stop> {
        let due = &exhausts.code;
        let Some(refusal) = Refusal::of(item, form) else {
            let got = Schema::get().describe(form, item, self.scope.run);
            return fail(format!("{got} instead of an answer or {due}"));
        };
        if refusal.code != *due || refusal.retry_after_s != exhausts.retry_after {
            return fail(format!(
                "{refusal} instead of {due}, retry after {} s",
                exhausts.retry_after
            ));
        }
        match (refusal.limit(), form) {
            (Some(named), _) if limit.is_none_or(|limit| limit == named) => {
                *limit = Some(named);
                Ok(())
            }
            (None, Form::Map) => Ok(()),
            _ => fail(format!("{refusal}: the limit is not named")),
        }
    }

    /// Publishes a successor of the newest set (05 §7).
    async fn publish(
        &mut self,
        who: &str,
        actor: &str,
        change: &Map<String, Json>,
        refused: Option<&(String, Json)>,
    ) -> Result<(), Stop> {
        let Some(workspace) = self.scope.run.workspaces.first() else {
            return Err(Bad("no workspace".into()).into());
        };
        let head = workspace.head.lock().expect("no holder panics").clone();
        self.scope
            .saved
            .insert("head_digest".into(), Item::Bytes(head.digest.clone()));
        let set = self.successor(&head, actor, change)?;
        let digest = digest(&set)?;
        self.scope
            .saved
            .insert("digest".into(), Item::Bytes(digest.clone()));
        let form = self.link(who)?.form;
        self.link(who)?.send_frame("ACCESS_PUBLISH", &set, form).await?;
        match refused {
            Some((code, detail)) => {
                self.refused(who, code, &json!(0), detail).await?;
                self.fence(who).await
            }
            None => {
                self.gets(who, &frame("ACCESS_ACCEPTED", json!({"digest": "$digest"})))
                    .await?;
                *workspace.head.lock().expect("no holder panics") = Head { set, digest };
                Ok(())
            }
        }
    }

    fn successor(&self, head: &Head, actor: &str, change: &Map<String, Json>) -> Result<Fields, Bad> {
        let mut set = head.set.clone();
        set.remove("sig");
        set.insert("version".into(), Item::Uint(number(&head.set, "version")? + 1));
        set.insert("prev_hash".into(), Item::Bytes(head.digest.clone()));
        set.insert("issued_at".into(), Item::Uint(self.scope.run.now_ms()));
        set.insert("pending".into(), Item::Array(Vec::new()));
        if let Some(Item::Array(parts)) = set.get_mut("quorum") {
            parts.truncate(2);
            parts.push(Item::Array(Vec::new()));
        }
        let signer = match change.get("signed_by") {
            Some(json) => self.scope.item(json)?,
            None => Item::Bytes(self.scope.key(actor).to_vec()),
        };
        set.insert("signer".into(), signer);
        for list in ["entries", "authorizers", "recovery", "pending"] {
            let named = |which: &str| match change.get(which).and_then(|lists| lists.get(list)) {
                Some(json) => match self.scope.item(json)? {
                    Item::Array(items) => Ok(items),
                    other => bad(format!("{list} is no list: {other}")),
                },
                None => Ok(Vec::new()),
            };
            let (add, remove) = (named("add")?, named("remove")?);
            let mut items = match set.get(list) {
                Some(Item::Array(items)) => items.clone(),
                _ => Vec::new(),
            };
            items.retain(|item| !remove.contains(item));
            items.extend(add);
            items.sort_by_key(Item::encode);
            items.dedup();
            set.insert(list.into(), Item::Array(items));
        }
        for (field, json) in change.get("set").and_then(Json::as_object).into_iter().flatten() {
            set.insert(field.clone(), self.scope.item(json)?);
        }
        if let Some(confirm) = change.get("confirm") {
            self.confirm(&mut set, confirm)?;
        }
        if !set.contains_key("sig") {
            sign(&mut set, self.scope.run)?;
        }
        Ok(set)
    }

    /// Quorum signatures over the set and a replacement device (05 §4), put where they are not signed over.
    fn confirm(&self, set: &mut Fields, confirm: &Json) -> Result<(), Bad> {
        let replacement = self.scope.bytes(confirm["device"].as_str().unwrap_or_default())?;
        let message = blake3(&[b"weald recovery-confirm v1", &digest(set)?, &replacement]);
        let mut sigs = Vec::new();
        for name in confirm["by"].as_array().into_iter().flatten() {
            let key = self.scope.key(name.as_str().unwrap_or_default());
            let sig = self.scope.run.sign(&key, &message).unwrap_or_default();
            sigs.push(Item::Array(vec![Item::Bytes(key.to_vec()), Item::Bytes(sig)]));
        }
        match set.get_mut("quorum") {
            Some(Item::Array(parts)) if parts.len() == 3 => {
                parts[2] = Item::Array(sigs);
                Ok(())
            }
            _ => bad("the set has no quorum to confirm by"),
        }
    }
}

/// The encoding of a set that its signature covers.
fn signing_input(set: &Fields) -> Result<Vec<u8>, Bad> {
    Schema::get().signing_input("ACCESS_PUBLISH", set)
}

/// What the next set names as its predecessor.
pub(crate) fn digest(set: &Fields) -> Result<Vec<u8>, Bad> {
    Ok(blake3(&[&signing_input(set)?]).to_vec())
}

/// Signs a set by its signer.
pub(crate) fn sign(set: &mut Fields, run: &crate::run::Run) -> Result<(), Bad> {
    let Some(Item::Bytes(signer)) = set.get("signer").cloned() else {
        return bad("a set needs a signer");
    };
    match run.sign(&signer, &signing_input(set)?) {
        Some(sig) => {
            set.insert("sig".into(), Item::Bytes(sig));
            Ok(())
        }
        None => bad("nobody has the signer's key"),
    }
}

fn frame(name: &str, fields: Json) -> Frame {
    Frame {
        name: name.to_owned(),
        fields: fields.as_object().cloned().unwrap_or_default(),
    }
}

fn verb(what: &What) -> String {
    match what {
        What::Opens { .. } => "opens".into(),
        What::Sends { message, .. } => match message {
            Message::Frame(frame) => format!("sends {}", frame.name),
            _ => "sends".into(),
        },
        What::Gets { frame } => format!("gets {}", frame.name),
        What::GetsAll { .. } => "gets in any order".into(),
        What::Refused { code, .. } => format!("refused {code}"),
        What::Closed { .. } => "closed".into(),
        What::Fences => "fences".into(),
        What::Closes => "closes".into(),
        What::Exhausts(_) => "exhausts".into(),
        What::Publishes { .. } => "publishes".into(),
        What::Lets { .. } => "lets".into(),
        What::Repeats { .. } => "repeats".into(),
        What::Waits { .. } => "waits".into(),
    }
}
