// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole system on real guests. One cluster of four is booted once and goes through everything in order: first what
//! leaves it whole, then the accidents. Other groups of parts have other clusters; two groups run at a time.
//!
//! `cargo test -p telegraphos-system -- WORD` runs only the parts with names that contain the word;
//! `TELEGRAPHOS_SCALE=full` makes the tests of endurance as long as promised, and runs the parts that `plan.txt` keeps
//! from each change.

mod accidents;
mod bench;
mod boards;
mod boot;
mod c;
mod channel;
mod counting;
mod cycles;
mod deaths;
mod demo;
mod detached;
mod direct;
mod fabric;
mod help;
mod image;
mod input;
mod leftovers;
mod map;
mod messages;
mod net;
mod operations;
mod page;
mod ports;
mod pressure;
mod processes;
mod queues;
mod replicas;
mod rings;
mod routes;
mod runner;
mod shares;
mod silence;
mod sockets;
mod whole;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use telegraphos_cluster::{Builder, Cluster, MachineLock, Net, Processes, ProgressMode, Settings, User};
use telegraphos_images::{KernelChoice, KernelSeries, Mistake, Progress, Store};
use telegraphos_system::Suite;
use telegraphos_testkit::Scale;

/// First argument that makes this executable the command `telegraphos`: the code its own program runs.
const AS_COMMAND: &str = "__telegraphos";

fn main() -> ExitCode {
    if let Some(code) = telegraphos_cluster::reexecuted() {
        return code;
    }
    let mut args: Vec<_> = std::env::args_os().collect();
    if args.get(1).is_some_and(|a| a == AS_COMMAND) {
        args.remove(1);
        return telegraphos_cluster::cli::main(args);
    }
    if let Err(e) = telegraphos_cluster::catch_signals() {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    let scale = Scale::from_env();
    let suite = Suite::new(include_str!("plan.txt"), scale, std::env::args().skip(1));
    // Of all clusters of this test, and of its commands: see `command`.
    let machine = if suite.lists() { Ok(None) } else { MachineLock::acquire(ProgressMode::Plain).map(Some) };
    let _machine = match machine {
        Ok(machine) => machine,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::FAILURE;
        }
    };
    let newest = OnceLock::new();
    // One cluster leaves a part of two processors idle. At full scale some parts are about limits of time.
    suite.groups(
        scale.pick(2, 1),
        &[
            &|suite| four_nodes(suite, scale),
            &|suite| sockets(suite, scale),
            &|suite| network(suite),
            &|suite| driver(suite),
            &|suite| oldest_kernel(suite, scale),
            &|suite| runner(suite),
            &|suite| without_machines(suite, scale),
            &|suite| trusted(suite),
            &|suite| one_process(suite, scale),
            &|suite| input(suite),
            &|suite| leftovers(suite),
            &|suite| counted(suite),
            &|suite| demo(suite, scale),
            &|suite| without_rings(suite),
            &|suite| one_counter(suite),
            &|suite| two_clusters(suite),
            &|suite| ports(suite),
            &|suite| suite.part("the_crates_plugin_counts_the_same", counting::the_crates_plugin_counts_the_same),
            &|suite| {
                suite
                    .part("bench_measures_everything_and_leaves_nothing", bench::measures_everything_and_leaves_nothing)
            },
            &|suite| {
                suite.part("kernel_newest_reported", || {
                    let report = whole::newest_kernel(scale)?;
                    newest.set(report).map_err(|_| anyhow::anyhow!("it came twice"))
                })
            },
        ],
    );
    let code = suite.finish();
    if let Some(report) = newest.get() {
        println!("newest kernel (does not gate): {report}");
    }
    code
}

/// What the demonstration shows, and finds.
fn demo(suite: &Suite, scale: Scale) {
    suite.part("demo_shows_its_table", || demo::shows_its_table(scale));
    suite.part("demo_finds_an_injected_corruption", demo::finds_an_injected_corruption);
}

/// Ports whose windows are too small, and large enough.
fn ports(suite: &Suite) {
    suite.part(
        "default_port_is_too_small_and_the_driver_says_the_remedy",
        ports::default_port_is_too_small_and_the_driver_says_the_remedy,
    );
    suite.part("default_port_fits_a_small_window", ports::default_port_fits_a_small_window);
}

/// A part that uses what several parts use, and its name.
type Part<'a, T> = (&'a str, &'a dyn Fn(&T) -> anyhow::Result<()>);

/// Makes what these parts use if one of them is wanted; if it cannot be made they all fail. `crash` is what it says of
/// a crash, for a part that fails.
fn with<T>(
    suite: &Suite,
    make: impl FnOnce() -> anyhow::Result<T>,
    crash: impl Fn(&T) -> Option<String>,
    parts: &[Part<'_, T>],
) {
    let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    let made = suite.selects(&names).then(|| make().map_err(|e| format!("{e:#}")));
    for (name, body) in parts {
        suite.part(name, || match &made {
            Some(Ok(made)) => body(made).map_err(|e| match crash(made) {
                Some(crash) => e.context(crash),
                None => e,
            }),
            Some(Err(e)) => anyhow::bail!("there is nothing to look at: {e}"),
            None => anyhow::bail!("nothing was made"),
        });
    }
}

fn with_cluster(suite: &Suite, name: &str, builder: Builder, parts: &[Part<'_, Cluster>]) {
    let boot = || builder.settings(settings(name)).boot().map_err(|e| anyhow::anyhow!("no cluster: {e}"));
    with(suite, boot, |cluster| cluster.guests().iter().find_map(whole::crash), parts);
}

/// `TELEGRAPHOS_LOG_DIR` keeps the logs of all processes and consoles, in one directory for each cluster.
/// `TELEGRAPHOS_TEST_KERNEL` has them run on a kernel of one's own, which may be one that checks itself
/// (`ci/debug.config`): that needs more memory, and takes its time.
fn settings(cluster: &str) -> Settings {
    let log_dir = std::env::var_os("TELEGRAPHOS_LOG_DIR").map(|directory| Path::new(&directory).join(cluster));
    let own = std::env::var_os("TELEGRAPHOS_TEST_KERNEL").map(|tree| Settings {
        kernel: Some(KernelChoice::Own(tree.into())),
        memory_mib: Some(1024),
        boot_timeout: Some(900),
        hang_timeout: Some(900),
        ..Settings::default()
    });
    Settings { log_dir, ..own.unwrap_or_default() }
}

fn four_nodes(suite: &Suite, scale: Scale) {
    with_cluster(
        suite,
        "four-nodes",
        Cluster::builder().nodes(4),
        &[
            ("selftest_on_four_nodes", &|c| whole::selftest(c, User::Root, scale)),
            ("lspci_is_the_golden_one", &whole::lspci_is_the_golden_one),
            ("loads_from_each_other_all_progress", &|c| pressure::loads_from_each_other(c, scale)),
            ("i8_flood_stalls_and_loses_nothing", &|c| pressure::i8_flood_stalls_and_loses_nothing(c, scale)),
            ("i8_unscheduled_board_loses_nothing", &|c| pressure::i8_unscheduled_board_loses_nothing(c, scale)),
            ("i7_a_late_answer_about_an_orphan_is_no_loss", &replicas::late_answer_about_an_orphan),
            ("owners_use_the_boards_atomics", &|c| operations::owners_use_the_boards_atomics(c, 1)),
            ("an_example_registers_its_memory", &operations::an_example_registers_its_memory),
            ("i15_counters_find_hot_pages", &operations::counters_find_hot_pages),
            ("i10_three_senders_overflow_an_8_word_queue", &queues::three_senders_overflow_an_8_word_queue),
            ("i10_fifty_thousand_through_64_kib_buffers", &|c| queues::fifty_thousand_through_64_kib_buffers(c, scale)),
            ("flags_lose_and_queues_do_not", &queues::flags_lose_and_queues_do_not),
            ("i2_i5_chaotic_stores_to_one_page", &|c| replicas::chaotic_stores_to_one_page(c, scale)),
            ("naive_copies_diverge_and_stay_so", &|c| replicas::naive_copies_diverge(c, scale)),
            ("e19_flag_overtakes_data_without_quiet", &replicas::flag_overtakes_data_without_quiet),
            ("eager_update_needs_no_receiver", &replicas::eager_update_needs_no_receiver),
            ("examples_of_replicated_pages", &replicas::examples),
            ("msg_i17_i18_all_to_all", &messages::all_to_all),
            ("msg_e21_longest_message", &messages::longest_message),
            ("msg_beyond_the_limit_of_locked_memory", &messages::beyond_the_limit),
            ("msg_process_dies", &deaths::process_dies),
            ("s2_rendezvous", &messages::rendezvous),
            ("s2_single_buffer", &|c| messages::with_taker(c, "single", &[])),
            ("s2_one_interrupt_a_message", &messages::interrupts),
            ("msg_threshold_follows", &messages::threshold),
            ("s4_threads_over_ports", &messages::threads_over_ports),
            ("s4_full_destination_delays", &messages::full_destination),
            ("s4_one_port_does_not_do_and_two_do", &messages::two_ports),
            ("s4_progress_modes", &messages::progress_modes),
            ("s3_pairs_on_a_processor", &messages::pairs_on_a_processor),
            ("s4_case_study", &|c| map::case_study(c, scale)),
            ("msg_bad_input", &|c| messages::alone(c, &["wrong"])),
            ("msg_hostile_process", &messages::hostile),
            ("msg_grants_end_with_their_messages", &messages::grants_end),
            ("msg_kept_imports_give_way", &messages::kept_imports_give_way),
            ("msg_nothing_is_left", &|c| processes::nothing_is_left_of(c, "msg")),
            ("event_queue_of_four_loses_nothing", &pressure::event_queue_of_four),
            ("driver_reloaded_amid_activity", &pressure::driver_reloaded_amid_activity),
            ("rings_carry_what_nothing_observes", &rings::carry_what_nothing_observes),
            ("an_idle_board_costs_nothing", &pressure::an_idle_board_costs_nothing),
            ("guest_logs_are_silent", &whole::guest_logs_are_silent),
            ("rings_are_new_after_a_reset", &rings::are_new_after_a_reset),
            ("reset_by_the_button", &accidents::reset_button),
            ("msg_node_loses_its_power", &deaths::node_loses_its_power),
            ("s4_node_powered_off_amid_messages", &messages::threads_and_power),
            ("msg_nothing_is_left_by_a_lost_node", &|c| processes::nothing_is_left_of(c, "msg")),
            ("reset_while_peers_store", &accidents::stores_do_not_reach_a_rebooted_guest),
            ("unplug_and_plug_while_in_use", &accidents::unplugged_and_plugged_while_in_use),
            ("guest_sleeps", &accidents::the_guest_sleeps),
            ("qemu_killed_and_started_on_the_same_hib", &accidents::qemu_killed_and_started_on_the_same_hib),
            ("replicas_survive_their_home", &replicas::home_goes_away),
            ("hib_killed", &accidents::hib_killed),
            ("fabric_killed", &accidents::fabric_killed),
            ("no_kernel_has_crashed", &whole::no_kernel_has_crashed),
        ],
    );
}

/// All packets pass the fabric. The failing variant of the papers is shown by holding boards and fabric, in an order
/// that makes two packets meet at the home's door: by a ring the second would be there before the fabric is held.
fn without_rings(suite: &Suite) {
    let settings = Settings { fabric: vec![("rings".into(), "0".into())], ..Settings::default() };
    with_cluster(
        suite,
        "without-rings",
        Cluster::builder().nodes(2).settings(settings),
        &[("i4_owner_without_counters_goes_back", &replicas::owner_without_counters_goes_back)],
    );
}

fn one_counter(suite: &Suite) {
    with_cluster(
        suite,
        "one-counter",
        Cluster::builder()
            .nodes(2)
            .hib_option("pending-writes", "1")
            // Nothing of it is about interrupts: so these guests handle them in threads.
            .each(|node| node.kernel_words = vec!["threadirqs".into()]),
        &[
            ("interrupts_in_threads_wake_sleepers", &whole::interrupts_in_threads_wake_sleepers),
            ("item26_one_counter_stalls_and_is_right", &replicas::one_counter_stalls_and_is_right),
        ],
    );
}

/// The boards and the fabric in one process, as people get them from `telegraphos run`; with the oldest kernel, two
/// virtual processors each, and as an ordinary user, so that all of it is seen with those, too.
fn one_process(suite: &Suite, scale: Scale) {
    let settings = Settings { processes: Some(Processes::One), ..Settings::default() };
    let builder = Cluster::builder().nodes(2).kernel(KernelSeries::V6_1).cpus(2).settings(settings);
    with_cluster(
        suite,
        "one-process",
        builder,
        &[
            ("one_process_kernel_6_1_selftest", &|c| whole::selftest(c, User::Tg, scale)),
            ("one_process_i8_flood_stalls_and_loses_nothing", &|c| {
                pressure::i8_flood_stalls_and_loses_nothing(c, Scale::Ci)
            }),
            ("one_process_idle_costs_nothing", &pressure::an_idle_board_costs_nothing),
            ("one_process_reset_by_the_button", &accidents::reset_button),
            ("one_process_function_reset", &accidents::function_reset_while_in_use),
            ("one_process_guest_logs_are_silent", &whole::guest_logs_are_silent),
            ("one_process_killed", &accidents::host_process_killed),
        ],
    );
}

/// Two nodes that trust each other, and one beside them.
fn trusted(suite: &Suite) {
    let trust = direct::GROUP.parse().into_iter().collect();
    with_cluster(
        suite,
        "trusted",
        Cluster::builder().nodes(3).settings(Settings { trust, ..Settings::default() }),
        &[
            ("direct_selftest", &direct::selftest),
            ("direct_outside_the_group", &direct::outside_the_group),
            ("direct_faults_are_met", &direct::faults_are_met),
            ("direct_unbound_while_used", &direct::unbound_while_used),
            ("direct_registrations_while_the_board_goes", &|c| {
                accidents::registrations_while_the_board_goes(c, Scale::Ci)
            }),
            ("channel_records_of_all_lengths", &channel::all_lengths),
            ("channel_roundtrips", &channel::roundtrips),
            ("channel_faults_amid_a_stream", &channel::faults_amid_a_stream),
            ("channel_hostile_process", &channel::hostile_process),
            ("channel_process_dies", &channel::process_dies),
            ("channel_nothing_is_left", &|c| processes::nothing_is_left_of(c, "ch.")),
            ("direct_after_a_reset", &direct::after_a_reset),
            ("direct_guest_logs_are_silent", &whole::guest_logs_are_silent),
            ("channel_node_loses_its_power", &channel::node_loses_its_power),
        ],
    );
}

/// Three nodes with a network, boards in one process as people have them.
fn network(suite: &Suite) {
    let settings = Settings { processes: Some(Processes::One), net: Some(Net::Nodes), ..Settings::default() };
    with_cluster(
        suite,
        "network",
        Cluster::builder().nodes(3).settings(settings),
        &[
            ("net_all_pairs", &net::all_pairs),
            ("net_bulk_is_whole", &net::bulk_is_whole),
            ("net_multicast_by_the_switch", &net::multicast_by_the_switch),
            ("net_hostile_node", &net::hostile_node),
            ("net_deaf_node", &net::deaf_node),
            ("net_kernels_names_are_the_kernels", &net::kernels_names_are_the_kernels),
            ("s3_bad_input", &image::bad_input),
            ("s3_hostile_users", &image::hostile_users),
            ("s3_spawn_and_output", &image::spawn_and_output),
            ("s3_signals", &image::signals),
            ("s3_least_loaded_and_partitions", &image::least_loaded_and_partitions),
            ("s3_alive_messages_are_n", &image::alive_messages_are_n),
            ("s3_master_dies", &image::master_dies),
            ("net_module_reloaded_amid_traffic", &net::module_reloaded_amid_traffic),
            ("net_guest_logs_are_silent", &whole::guest_logs_are_silent),
            ("s3_node_declared_dead_by_mistake", &image::node_declared_dead_by_mistake),
            ("s3_node_dies", &image::node_dies),
            ("net_node_reset_amid_traffic", &net::node_reset_amid_traffic),
            ("net_unplugged_amid_traffic", &net::unplugged_amid_traffic),
            ("net_no_kernel_has_crashed", &whole::no_kernel_has_crashed),
        ],
    );
}

/// Two nodes with programs of Debian's, and a network of QEMU's beside ours.
fn sockets(suite: &Suite, scale: Scale) {
    let prepared = tempfile::tempdir().map_err(anyhow::Error::from).and_then(|at| Ok((sockets::nodes(at.path())?, at)));
    let (builder, _cable) = match prepared {
        Ok(prepared) => prepared,
        Err(e) => return suite.part("s3_sockets", || Err(e)),
    };
    let parts: [Part<'_, Cluster>; 14] = [
        // First, since others take boards away.
        ("boards_go_and_come_under_all_traffic", &|c| cycles::under_all_traffic(c, scale)),
        ("s3_sockets", &sockets::an_unmodified_program),
        ("s3_sockets_signals", &sockets::signals),
        ("s3_sockets_all_ways", &sockets::ways),
        ("s3_sockets_borders", &sockets::borders),
        ("net_frames_to_unknown_addresses", &sockets::frames_to_unknown_addresses),
        ("s3_sockets_fall_back", &sockets::falls_back),
        ("s3_sockets_bad_input", &sockets::bad_input),
        ("message_layers", &|c| sockets::layers(c, scale)),
        ("msg_c_example", &c::messages_example),
        ("hostile_user_of_the_driver", &cycles::hostile_user),
        ("s3_sockets_nothing_is_left", &|c| processes::nothing_is_left_of(c, "tcp:")),
        ("s3_sockets_own_board_is_lost", &sockets::own_board_is_lost),
        ("s3_sockets_node_is_lost", &sockets::node_is_lost),
    ];
    with_cluster(suite, "sockets", builder, &parts);
}

/// Two clusters of two nodes, and a cable between.
fn two_clusters(suite: &Suite) {
    with(
        suite,
        routes::boot,
        |_| None,
        &[
            ("s4_gateways_join_clusters", &routes::gateways_join_clusters),
            ("s4_bad_neighbours", &routes::bad_neighbours),
            ("s4_gateway_dies", &routes::gateway_dies),
            ("s4_nothing_is_left_by_gateways", &routes::nothing_is_left),
        ],
    );
}

/// Counts once what all of these look at.
fn counted(suite: &Suite) {
    with(
        suite,
        counting::count,
        |_| None,
        &[
            ("a_remote_store_is_one_store_instruction", &counting::a_remote_store_is_one_store_instruction),
            ("i17_no_intermediate_copy", &counting::no_intermediate_copy),
            ("s2_shares_of_a_start", &counting::shares_of_a_start),
        ],
    );
}

fn oldest_kernel(suite: &Suite, scale: Scale) {
    let parts: [Part<'_, Cluster>; 12] = [
        ("kernel_6_1_net_between_two", &net::between_two),
        ("kernel_6_1_net_board_hangs", &net::board_hangs),
        ("kernel_6_1_owners_use_the_boards_atomics", &|c| operations::owners_use_the_boards_atomics(c, 2)),
        ("kernel_6_1_i10_wide_elements_with_two_processors", &queues::wide_elements_with_two_processors),
        ("kernel_6_1_i2_i5_chaotic_stores_to_one_page", &|c| replicas::chaotic_stores_to_one_page(c, Scale::Ci)),
        ("kernel_6_1_guest_logs_are_silent", &whole::guest_logs_are_silent),
        ("kernel_6_1_function_reset", &accidents::function_reset_while_in_use),
        ("kernel_6_1_registrations_while_the_board_goes", &|c| accidents::registrations_while_the_board_goes(c, scale)),
        ("kernel_6_1_guest_sleeps", &accidents::the_guest_sleeps),
        ("kernel_6_1_unplug_and_plug_while_in_use", &accidents::unplugged_and_plugged_while_in_use),
        ("kernel_6_1_no_kernel_has_crashed", &whole::no_kernel_has_crashed),
        ("kernel_6_1_net_silence_of_a_node_hangs_no_other", &silence::of_a_node_hangs_no_other),
    ];
    with_cluster(
        suite,
        "kernel-6.1",
        // Two virtual processors each: special mode has others to stop, locks others to exclude.
        Cluster::builder()
            .nodes(2)
            .kernel(KernelSeries::V6_1)
            .cpus(2)
            .settings(Settings { net: Some(Net::Nodes), ..Settings::default() }),
        &parts,
    );
}

/// The command `telegraphos` with these arguments.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    // This process has the machine's lock.
    command.env(MachineLock::VARIABLE, MachineLock::HELD).arg(AS_COMMAND).args(args);
    command
}

fn input(suite: &Suite) {
    suite.part("input_unwritable_socket_directory", input::a_directory_for_sockets_that_cannot_be_written);
    suite.part("input_unknown_configuration_key", input::a_configuration_with_an_unknown_key);
    suite.part("input_unfit_qemu", input::a_qemu_that_is_too_old_or_without_vfio_user);
    suite.part("input_unusable_kvm", input::kvm_that_cannot_run_a_guest_is_named_and_not_used);
    suite.part("input_private_guest_memory", input::guest_memory_that_is_private);
    suite.part("boot_what_cannot_is_refused", boot::what_cannot_boot_is_refused);
    suite.part("boot_a_directory_and_shares", boot::a_directory_is_the_root_and_shares_are_in_it);
    suite.part("boot_the_hosts_root", boot::the_hosts_own_root_runs_its_programs);
    suite.part("boot_a_disk", boot::a_disk_is_the_root_and_stays_as_it_is);
    suite.part("boot_a_partition_of_a_qcow2_image", boot::a_partition_of_a_qcow2_image_is_the_root);
    suite.part("boot_without_a_root_or_init", boot::without_a_root_or_init_it_says_so);
}

fn leftovers(suite: &Suite) {
    suite.part("leftovers_of_an_interrupted_command", leftovers::interrupt_at_any_time_leaves_nothing);
    suite.part("leftovers_of_an_interrupted_measurement", leftovers::an_interrupted_measurement_leaves_nothing);
    suite.part("leftovers_of_a_killed_command", leftovers::even_a_killed_harness_takes_its_children_along);
}

/// How `run` and `up` end when a part of the cluster does.
fn runner(suite: &Suite) {
    suite.part("run_ends_with_254_and_the_stack_of_a_panic", runner::a_panic_is_254_with_its_stack);
    suite.part("run_ends_with_254_when_a_kernel_panics_at_boot", runner::a_panic_at_boot_is_254_at_once);
    suite.part("run_ends_with_124_after_its_timeout", runner::a_late_command_is_124);
    suite.part("run_ends_with_254_after_an_error_of_the_kernel", runner::an_error_of_the_kernel_is_254_without_a_panic);
    suite.part("run_takes_words_of_programs_for_words", runner::words_of_programs_are_no_failure);
    suite.part("run_finds_the_revision_for_git_bisect", runner::a_bisection_finds_the_revision);
    suite.part("run_ends_with_254_when_a_guest_hangs", runner::a_guest_that_hangs_is_254);
    suite.part("run_does_not_count_time_while_stopped", runner::time_in_which_all_is_stopped_does_not_count);
    suite.part("run_ends_with_124_when_a_boot_waits", runner::a_boot_that_waits_for_ever_is_124);
    suite.part("run_with_gdb", runner::gdb_stops_a_guest_as_long_as_it_wants);
    suite.part("machine_pc_has_the_board", runner::a_board_works_on_the_machine_pc);
    suite.part("run_of_unlike_nodes_reports_what_they_are", runner::unlike_nodes_report_what_they_are);
    suite.part("runs_and_clusters_beside_each_other", runner::clusters_run_beside_each_other);
    suite.part("up_ends_when_a_process_of_it_is_killed", runner::up_ends_with_its_processes);
    suite.part("a_detached_cluster_serves_its_commands_until_down", detached::serves_its_commands_until_down);
}

/// Boards and a fabric as processes, driven by test clients.
fn without_machines(suite: &Suite, scale: Scale) {
    suite.part("item23_one_packet_on_each_link", boards::one_packet_on_each_link);
    suite.part("item26_counters_stall_and_lose_nothing", boards::counters_stall_and_lose_nothing);
    suite.part("bench_of_replicas_shows_its_tables", boards::bench_shows_its_tables);
    suite.part("i16_sixteen_boards_over_three_fabrics_lose_nothing", || {
        fabric::sixteen_boards_over_three_fabrics_lose_nothing(scale)
    });
    suite.part("i16_a_long_partition_is_reported_and_heals", fabric::a_long_partition_is_reported_and_heals);
    suite.part("a_hung_board_is_disconnected_and_comes_back", fabric::a_hung_board_is_disconnected_and_comes_back);
    suite.part("input_fabric_processes_that_do_not_fit", fabric::what_does_not_fit_is_named);
}

/// No other board has the vendor id.
fn pci_vendor_is_unassigned() -> anyhow::Result<()> {
    let path = Store::open(None, Progress::Plain)?.pci_ids()?;
    let list = std::fs::read(&path)?;
    let list = String::from_utf8_lossy(&list);
    // A vendor's line begins with its id, that of a device with a tab.
    let vendors: Vec<&str> = list.lines().filter(|line| line.get(4..6) == Some("  ")).collect();
    anyhow::ensure!(vendors.iter().any(|line| line.starts_with("8086")), "{} is no list of PCI ids", path.display());
    let own = format!("{:04x} ", telegraphos_wire::ids::VENDOR_ID);
    let taken = vendors.iter().find(|line| line.starts_with(&own));
    anyhow::ensure!(taken.is_none(), "{}: {taken:?} is assigned: choose another id", path.display());
    Ok(())
}

/// That sparse says nothing means something: a word for the board, and one from it, that are not converted are found.
fn sparse_finds_missing_conversions() -> anyhow::Result<()> {
    let mistakes = [
        Mistake { file: "guest-driver/module/counter.c", right: "cpu_to_le64(reads)", wrong: "reads" },
        Mistake {
            file: "guest-driver/module/admin.c",
            right: "le64_to_cpu(c->generation);\n\tto->length",
            wrong: "c->generation;\n\tto->length",
        },
        Mistake {
            file: "guest-driver/module/events.c",
            right: "le64_to_cpu(READ_ONCE(entry->value))",
            wrong: "READ_ONCE(entry->value)",
        },
        Mistake { file: "lab/module/launch.c", right: "cpu_to_le64(arg->compare)", wrong: "arg->compare" },
    ];
    let found = Store::open(None, Progress::Plain)?.sparse_finds(KernelSeries::V6_12, &mistakes)?;
    for mistake in mistakes {
        let is_it = |line: &String| line.contains(mistake.file) && line.contains("different base types");
        anyhow::ensure!(found.iter().any(is_it), "sparse does not find {mistake:?}: {found:?}");
    }
    Ok(())
}

/// Sparse, checkpatch and kernel-doc have nothing to say about the driver; and it has a number of its own.
fn driver(suite: &Suite) {
    suite.part("pci_vendor_is_unassigned", pci_vendor_is_unassigned);
    suite.part("driver_is_clean", || {
        let store = Store::open(None, Progress::Plain)?;
        let style = store.check_style()?;
        anyhow::ensure!(style.is_clean(), "{style}");
        // The oldest and the usual one; what is wrong with one of them alone, its compiler says where it is built for
        // guests.
        let series = [KernelSeries::V6_12, KernelSeries::V6_1];
        for series in &series[..Scale::from_env().pick(1, 2)] {
            let report = store.check_module(*series)?;
            anyhow::ensure!(report.is_clean(), "kernel {series}:\n{report}");
        }
        Ok(())
    });
    suite.part("driver_without_a_conversion_is_not", sparse_finds_missing_conversions);
}
