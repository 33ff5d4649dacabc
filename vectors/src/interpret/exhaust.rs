//! Budgets: the same frame again and again until it is refused.

use super::Interpreter;
use crate::cbor::Item;
use crate::frames::{Fields, Form, Refusal, Schema};
use crate::link::{Stop, fail};
use crate::script::Exhausts;
use serde_json::Map;

/// Frames sent before their answers are read, when a budget is used up: less than a queue holds.
const PIPELINED: u64 = 100;

impl Interpreter<'_> {
    /// Sends until refused. A relay may have another figure than the specification, but has to name it, and to take
    /// exactly that many.
    pub(super) async fn exhaust(&mut self, who: &str, exhausts: &Exhausts) -> Result<(), Stop> {
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
}
