// SPDX-License-Identifier: MIT OR Apache-2.0
//! One suite for every transport. `TELEGRAPHOS_SEED` chooses the cuts, `TELEGRAPHOS_SCALE=full` runs more of them.

mod addressed;
mod connected;
mod drive;
#[allow(dead_code)] // other tests need more of it
#[path = "../../quic/tests/support/pki.rs"]
mod pki;
mod subjects;

use subjects::Subject;

/// Everything that two connected ends owe each other.
macro_rules! connected {
    ($subject:expr; $($test:ident)*) => { $(
        #[test]
        fn $test() {
            crate::conformance::connected::$test($subject);
        }
    )* };
    ($subject:expr) => {
        connected!($subject;
            bytes_arrive_in_order_each_once
            back_pressure_is_bounded_and_loses_nothing
            room_is_an_event
            the_end_comes_after_all_bytes
            leaving_with_unread_bytes_is_an_end
            idle_ends_sleep
            ping_pong
        );
    };
}

/// And everything that addresses owe.
macro_rules! addressed {
    ($subject:expr; $($test:ident)*) => { $(
        #[test]
        fn $test() {
            crate::conformance::addressed::$test($subject);
        }
    )* };
    ($subject:expr) => {
        addressed!($subject;
            child
            alone
            reconnecting_works
            many_connections_at_once
            an_absent_listener_is_an_error_or_an_end
        );

        #[test]
        fn a_killed_peer_is_noticed() {
            let test = concat!(module_path!(), "::child");
            crate::conformance::addressed::a_killed_peer_is_noticed($subject, test.split_once("::").unwrap().1);
        }

        #[test]
        fn a_thousand_connects_leave_nothing() {
            let test = concat!(module_path!(), "::alone");
            crate::conformance::addressed::a_thousand_connects_leave_nothing(test.split_once("::").unwrap().1);
        }
    };
}

/// And those that are files.
macro_rules! socket_files {
    ($subject:expr) => {
        addressed!($subject;
            a_stale_socket_is_replaced_and_a_live_one_refused
        );
    };
}

/// And stream sockets that any process can connect to.
macro_rules! streams {
    ($subject:expr) => {
        addressed!($subject;
            garbage_affects_no_other_peer
            another_transport_is_refused
        );
    };
}

mod unix {
    use super::*;
    const SUBJECT: Subject = Subject::Address("unix:{}/socket");
    connected!(SUBJECT);
    addressed!(SUBJECT);
    socket_files!(SUBJECT);
    streams!(SUBJECT);
}

mod ring {
    use super::*;
    const SUBJECT: Subject = Subject::Address("ring:{}/socket");
    connected!(SUBJECT);
    addressed!(SUBJECT);
    socket_files!(SUBJECT);
    streams!(SUBJECT);
}

mod in_process {
    use super::*;
    connected!(Subject::InProcess);
}

/// With a place for faults, and none.
mod unix_without_faults {
    use super::*;
    const SUBJECT: Subject = Subject::Faulty("unix:{}/socket", "");
    connected!(SUBJECT);
    addressed!(SUBJECT);
}

/// Delays change nothing but the time.
mod unix_delayed {
    use super::*;
    const SUBJECT: Subject = Subject::Faulty("unix:{}/socket", "latency=200us jitter=300us rate=400MB/s");
    connected!(SUBJECT);
    addressed!(SUBJECT);
}

mod ring_delayed {
    use super::*;
    const SUBJECT: Subject = Subject::Faulty("ring:{}/socket", "latency=200us jitter=300us rate=400MB/s");
    connected!(SUBJECT);
    addressed!(SUBJECT);
}

/// RDP, with nothing below it and with everything.
mod udp {
    use super::*;
    const SUBJECT: Subject = Subject::Address("udp:127.0.0.1:{port}");
    connected!(SUBJECT);
    addressed!(SUBJECT);
}

mod unix_datagram {
    use super::*;
    const SUBJECT: Subject = Subject::Address("unix-datagram:{}/socket");
    connected!(SUBJECT);
    addressed!(SUBJECT);
    socket_files!(SUBJECT);
}

mod udp_faulty {
    use super::*;
    const SUBJECT: Subject = Subject::Faulty(
        "udp:127.0.0.1:{port}",
        "loss=2% corrupt=1% duplicate=2% reorder=1% latency=100us jitter=100us",
    );
    connected!(SUBJECT);
    addressed!(SUBJECT);
}

mod unix_datagram_faulty {
    use super::*;
    const SUBJECT: Subject = Subject::Faulty("unix-datagram:{}/socket", "loss=2% corrupt=1% duplicate=2% reorder=1%");
    connected!(SUBJECT);
    addressed!(SUBJECT);
    socket_files!(SUBJECT);
}

mod quic {
    use super::*;
    const SUBJECT: Subject = Subject::Quic("");
    connected!(SUBJECT);
    addressed!(SUBJECT);
}

/// A deliberate bug in QUIC is found, by the check that is for it.
mod quic_with_bugs {
    use super::*;
    use telegraphos_quic::Bug;

    #[test]
    fn alone() {
        addressed::alone(Subject::QuicWith(Bug::KeepDescriptors));
    }

    #[test]
    fn a_thousand_connects_leave_nothing_finds_kept_descriptors() {
        let output = addressed::count_alone("conformance::quic_with_bugs::alone");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(": descriptors"), "{said}");
    }

    #[test]
    fn the_end_comes_after_all_bytes_finds_an_end_that_overtakes() {
        let found = std::panic::catch_unwind(|| {
            connected::the_end_comes_after_all_bytes(Subject::QuicWith(Bug::EndOvertakes));
        });
        let said = found.unwrap_err().downcast::<String>().unwrap();
        assert!(said.contains("first difference, length"), "{said}");
    }
}

mod quic_over_a_bad_network {
    use super::*;
    connected!(Subject::Quic("loss=2% corrupt=1% duplicate=1% reorder=1% latency=100us jitter=100us"); bytes_arrive_in_order_each_once
        the_end_comes_after_all_bytes
        leaving_with_unread_bytes_is_an_end
        ping_pong
    );
}
