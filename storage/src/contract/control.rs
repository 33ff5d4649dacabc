//! What every control store must do: commits with checks, and the directory.

use super::*;

/// One false check, and nothing happens.
pub fn a_commit_happens_only_if_every_check_holds(subject: &impl Subject) {
    let store = subject.open();
    assert_eq!(
        commit(&store, "ws:a", vec![absent("x")], vec![put("x", "1")]),
        Outcome::Applied
    );
    assert_eq!(
        commit(&store, "ws:a", vec![absent("x")], vec![put("x", "2")]),
        Outcome::Refused
    );
    let checks = vec![equals("x", "1"), absent("y")];
    assert_eq!(
        commit(&store, "ws:a", checks.clone(), vec![put("y", "2")]),
        Outcome::Applied
    );
    assert_eq!(
        commit(&store, "ws:a", checks, vec![put("x", "3"), put("z", "3")]),
        Outcome::Refused
    );
    assert_eq!(
        commit(&store, "ws:a", vec![equals("x", "")], vec![put("x", "4")]),
        Outcome::Refused
    );
    assert_eq!(
        commit(&store, "ws:a", vec![equals("q", "")], vec![put("x", "5")]),
        Outcome::Refused
    );
    assert_eq!(load(&store, "ws:a"), pairs(&[("x", "1"), ("y", "2")]));
}

/// Commits handed over together are decided one after the other, and a refused one disturbs none.
pub fn checks_see_the_commits_before_them(subject: &impl Subject) {
    let store = subject.open();
    let (sender, receiver) = mpsc::channel();
    for n in 0..200_u32 {
        let checks = match n {
            0 => vec![absent("n")],
            // Every tenth is wrong.
            _ if n % 10 == 9 => vec![equals("n", "never")],
            _ => vec![equals("n", &(n - 1 - u32::from(n % 10 == 0)).to_string())],
        };
        let batch = ControlBatch {
            checks,
            writes: vec![put("n", &n.to_string())],
            directory: vec![],
        };
        let sender = sender.clone();
        store.commit(
            realm("ws:a"),
            batch,
            Box::new(move |r| sender.send((n, r)).expect("heard")),
        );
    }
    for expected in 0..200 {
        let (n, outcome) = receiver.recv_timeout(Duration::from_secs(60)).expect("answered");
        assert_eq!(n, expected);
        let wrong = n % 10 == 9;
        assert_eq!(
            outcome,
            Ok(if wrong { Outcome::Refused } else { Outcome::Applied }),
            "{n}"
        );
    }
    assert_eq!(load(&store, "ws:a"), pairs(&[("n", "198")]));
}

/// Keys are bytes and ascend as such; a later write of a commit wins.
pub fn a_commit_writes_deletes_and_loads_in_order(subject: &impl Subject) {
    let store = subject.open();
    let writes = ["b", "a", "", "ab", "c"].map(|key| put(key, key));
    assert_eq!(commit(&store, "ws:a", vec![], writes.to_vec()), Outcome::Applied);
    let writes = vec![
        Write {
            key: b"c".to_vec(),
            value: None,
        },
        Write {
            key: b"never".to_vec(),
            value: None,
        },
        put("a", "first"),
        put("a", "second"),
    ];
    assert_eq!(commit(&store, "ws:a", vec![], writes), Outcome::Applied);
    let all = pairs(&[("", ""), ("a", "second"), ("ab", "ab"), ("b", "b")]);
    assert_eq!(load(&store, "ws:a"), all);
    let get = |key: &str| wait(|done| store.get(realm("ws:a"), key.into(), done)).expect("reads");
    assert_eq!(get("a"), Some(Bytes::from_static(b"second")));
    assert_eq!(get(""), Some(Bytes::new()));
    assert_eq!(get("c"), None);
}

/// No realm sees another's records, not even one whose name is the beginning of its own.
pub fn realms_do_not_mix(subject: &impl Subject) {
    let store = subject.open();
    for name in ["ws:", "ws:a", "ws:ab"] {
        assert_eq!(
            commit(&store, name, vec![absent("b")], vec![put("b", name)]),
            Outcome::Applied
        );
    }
    assert_eq!(load(&store, "ws:"), pairs(&[("b", "ws:")]));
    assert_eq!(load(&store, "ws:a"), pairs(&[("b", "ws:a")]));
    assert_eq!(load(&store, "ws:ab"), pairs(&[("b", "ws:ab")]));
    assert_eq!(load(&store, "ws"), []);
}

/// Insert if absent, name by name.
pub fn the_first_claim_wins_for_good(subject: &impl Subject) {
    let (a, b) = (realm("ws:a"), realm("ws:b"));
    {
        let store = subject.open();
        assert_eq!(
            claim(&store, "ws:a", &["x", "y", "x"]),
            [a.clone(), a.clone(), a.clone()]
        );
        assert_eq!(claim(&store, "ws:b", &["y", "z"]), [a.clone(), b.clone()]);
    }
    let store = subject.open();
    assert_eq!(claim(&store, "ws:a", &["z", "x"]), [b.clone(), a.clone()]);
    let expected = [("x", &a), ("y", &a), ("z", &b)];
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, realm)| (name.to_string(), (*realm).clone(), String::new()))
        .collect();
    assert_eq!(tokens(&store), expected);
    assert_eq!(store.directory(DirectoryKind::Group).expect("lists"), []);
}

/// A commit may set and remove entries of its own realm, and claims free ones; another's refuse it.
pub fn a_commit_changes_only_directory_entries_of_its_realm(subject: &impl Subject) {
    let store = subject.open();
    claim(&store, "ws:a", &["mine", "gone"]);
    claim(&store, "ws:b", &["yours"]);
    let commit = |directory: Vec<(&str, Option<&'static str>)>, key: &str| {
        let directory = directory
            .into_iter()
            .map(|(k, v)| (token(k), v.map(Bytes::from)))
            .collect();
        let batch = ControlBatch {
            checks: vec![],
            writes: vec![put(key, "1")],
            directory,
        };
        wait(|done| store.commit(realm("ws:a"), batch, done)).expect("commits")
    };
    let changes = vec![
        ("mine", Some("value")),
        ("gone", None),
        ("free", Some("")),
        ("never", None),
    ];
    assert_eq!(commit(changes, "applied"), Outcome::Applied);
    assert_eq!(
        commit(vec![("mine", Some("lost")), ("yours", Some("lost"))], "refused"),
        Outcome::Refused
    );
    assert_eq!(commit(vec![("yours", None)], "refused"), Outcome::Refused);
    let entry = |name: &str, owner: &str, value: &str| (name.to_string(), realm(owner), value.to_string());
    let expected = [
        entry("free", "ws:a", ""),
        entry("mine", "ws:a", "value"),
        entry("yours", "ws:b", ""),
    ];
    assert_eq!(tokens(&store), expected);
    assert_eq!(load(&store, "ws:a"), pairs(&[("applied", "1")]));
    // What was given up is free again.
    assert_eq!(claim(&store, "ws:b", &["gone"]), [realm("ws:b")]);
}

/// The directory changes of a commit share its checks.
pub fn a_refused_commit_claims_nothing(subject: &impl Subject) {
    let store = subject.open();
    let batch = ControlBatch {
        checks: vec![equals("x", "1")],
        writes: vec![],
        directory: vec![(token("t"), Some(Bytes::new()))],
    };
    let outcome = wait(|done| store.commit(realm("ws:a"), batch, done));
    assert_eq!(outcome, Ok(Outcome::Refused));
    assert_eq!(tokens(&store), []);
    assert_eq!(claim(&store, "ws:b", &["t"]), [realm("ws:b")]);
}

/// A store opens again whatever it was asked for last, also what it refused or had no need to write.
pub fn what_changed_nothing_may_be_the_last_that_happened(subject: &impl Subject) {
    {
        let store = subject.open();
        commit(&store, "ws:a", vec![], vec![put("x", "1")]);
        claim(&store, "ws:a", &["t"]);
    }
    for ask in 0..3 {
        let store = subject.open();
        match ask {
            0 => {
                let outcome = commit(&store, "ws:a", vec![absent("x")], vec![put("x", "2")]);
                assert_eq!(outcome, Outcome::Refused);
            }
            1 => assert_eq!(claim(&store, "ws:b", &["t"]), [realm("ws:a")]),
            _ => {
                let outcome = commit(&store, "ws:a", vec![equals("x", "1")], vec![]);
                assert_eq!(outcome, Outcome::Applied);
            }
        }
        drop(store);
        let store = subject.open();
        assert_eq!(load(&store, "ws:a"), pairs(&[("x", "1")]));
        assert_eq!(claim(&store, "ws:b", &["t"]), [realm("ws:a")]);
    }
}
