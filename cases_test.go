package evenkeel_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// trouble is a way in which systems like this one are known to fail, and the
// tests that hold the right behaviour, as folder.Test. elsewhere says why the
// collector has no part in it.
type trouble struct {
	what      string
	guards    []string
	elsewhere string
}

// lyingTelemetry: known failures of controllers on telemetry that is missing,
// old or wrong, with the right behaviour.
var lyingTelemetry = []trouble{
	{"one node without metrics ends the whole cycle: skip it, go on, say the coverage", []string{"cluster.TestOneBlindNode", "collector.TestRefusedFrames", "collector.TestPanicIsContained", "collector.TestExpectedButSilent"}, ""},
	{"stale metrics go on evicting: each value has its age, and a limit to it", []string{"cluster.TestAgeAndStale", "cluster.TestFreshness", "collector.TestStaleValuesAreNotShown"}, ""},
	{"a missing value reads as zero, and the node looks idle", []string{"cluster.TestIdleTakesEverySignal", "cluster.TestMembersLeftOutAreNotNobody", "telemetry.TestLinkHolesAreNotZeros", "collector.TestExpositionTellsWhatIsKnown"}, ""},
	{"a missing value reads as full", []string{"cluster.TestThermalSaysNothingItCannotKnow", "cluster.TestHeadroom", "collector.TestExpectedButSilent"}, ""},
	{"the wrong metric is read, or victims come in the wrong order", []string{"telemetry.TestCatalogIsConsistent", "telemetry.TestValuesSurviveTheWire", "collector.TestExpositionGolden"}, ""},
	{"an absent metric is a crash or a silent zero: degrade", []string{"cluster.TestJudgeProperties", "cluster.TestDeviceStates", "collector.TestExpositionTellsWhatIsKnown"}, ""},
	{"a busy node is called idle, idle time starts anew: several signals, and holes are known", []string{"cluster.TestIdleTakesEverySignal", "cluster.TestUseIsSeenByAnySignal", "cluster.TestIdleTimeOverAHole"}, ""},
	{"replayed or old events act again after a restart: fence by boot, process and time", []string{"cluster.TestOldXidIsNotNews", "cluster.TestObservationsOfTheOldProcess", "cluster.TestRestartIsANewSource", "cluster.TestValuesOlderThanTheirProcess", "cluster.TestSequence"}, ""},
	{"the model keeps the old place after an act; unknown counts as recovered", []string{"cluster.TestReceiptMovesTheLimit", "cluster.TestDeviceMovesWithItsMachineOff", "cluster.TestWhatClearsAnXid", "cluster.TestVerdictsReachTheView"}, ""},
}

// transportTrouble: known failures of message buses, exporters and scrapes at
// scale, with the right behaviour.
var transportTrouble = []trouble{
	{"acknowledged before it is synced, lost with the power: sync always", []string{"telemetry/bus/embedded.TestServersSyncAndDoNotStall"}, ""},
	{"split brain, loss in a change of members: epochs are never trusted backwards", []string{"telemetry/bus.TestPausedHolderLoses", "telemetry/bus.TestLeaseOfADeadHolderEnds", "telemetry/bus.TestFollowJournalNoticesANewJournal"}, ""},
	{"a slow consumer slows everybody", []string{"telemetry/bus.TestSlowSubscriberHarmsItselfOnly", "telemetry/bus/embedded.TestServersSyncAndDoNotStall", "collector.TestFullQueueDropsTheOldest"}, ""},
	{"cut by the write deadline: back at once, and what was lost is counted", []string{"telemetry/bus.TestSlowSubscriberHarmsItselfOnly", "telemetry/bus.TestSlowHandlerIsCounted", "collector.TestLostFramesAreCounted"}, ""},
	{"storms of reconnects: jitter, and no end of attempts", []string{"telemetry/bus.TestConnectionNeverGivesUp"}, ""},
	{"certificates are turned", []string{"telemetry/bus.TestCertificatesAreTurned"}, ""},
	{"a full disk ends the streams, not the telemetry", []string{"telemetry/bus.TestFullDiskLeavesTelemetryAlone", "telemetry/bus.TestFullStreamGivesUpItsOldest", "collector.TestInventoryFileWithoutABus"}, ""},
	{"a lease that is renewed loses its end", []string{"telemetry/bus.TestRenewedLeaseStillEnds"}, ""},
	{"a consumer stalls for ever when its stream changes leader", []string{"telemetry/bus.TestFollowersSurviveTheServer", "telemetry/bus.TestConsumerThatVanishes"}, ""},
	{"a consumer vanishes in silence", []string{"telemetry/bus.TestConsumerThatVanishes", "telemetry/bus.TestKeepStreams"}, ""},
	{"attempts to connect run out", []string{"telemetry/bus.TestConnectionNeverGivesUp"}, ""},
	{"old frames are sent after an outage", []string{"telemetry/bus.TestNothingOldIsSentAfterAnOutage", "telemetry/bus.TestConnectionNeverGivesUp"}, ""},
	{"a subject for each GPU and metric: one for each node", []string{"telemetry.TestSubjects", "telemetry/bus.TestFramesAndObservations"}, ""},
	{"a stream takes a thousand consumers and no more", []string{"telemetry/bus.TestConsumersDoNotRunOut"}, ""},
	{"a newer server is stricter: the contract runs on the library and on the server's own program", []string{"telemetry/bus.TestEnsureStreams", "telemetry/bus.TestFramesAndObservations", "telemetry/bus.TestIdentityIsTheSubject"}, ""},
	{"one duplicate series fails the whole scrape", []string{"collector.TestTwoNodesClaimOneDevice", "collector.TestExpositionIsClean", "telemetry.TestDecodeRefusesByReason"}, ""},
	{"series of what is gone stay for ever", []string{"collector.TestSeriesEndWithTheirDevice", "collector.TestChurnLeavesNothing", "cluster.TestExpectedFollowsInventory"}, ""},
	{"updating at a scrape races", []string{"collector.TestConcurrentUse", "collector.TestStalledScraper"}, ""},
	{"memory grows with metrics made at a scrape, or with what a node invents", []string{"collector.TestScrapeAllocations", "collector.TestNodeThatInventsSeries", "cluster.TestNodeThatNamesWithoutEnd"}, ""},
	{"out of order, duplicate, out of bounds: one writer a series, and the viewer's clock", []string{"cluster.TestSequence", "cluster.TestSkewIsMeasuredAndTakenOut", "cluster.TestClockFaultsMakeValuesSuspect", "cluster.TestBurstAfterAnOutage"}, ""},
	{"one bad sample hides the others: checked before it goes on", []string{"cluster.TestRangeIsCheckedAgain", "cluster.TestRefusedFrameChangesNothing", "collector.TestLiarsOverTheBus"}, ""},
	{"giant targets: bounded, and cheap to scrape", []string{"collector.TestScrapeAllocations", "collector.TestNodesAreBounded"}, ""},
	{"stale, blank or sticky values", []string{"collector.TestStaleValuesAreNotShown", "cluster.TestStuckSensor", "cluster.TestSlowValueIsConfirmed", "exporter.TestInvalidValues", "nvml.TestBlankAndDeniedOverTheLibrary"}, ""},
	{"wrong units; a scrape that waits for devices", []string{"cluster.TestRangeIsCheckedAgain", "collector.TestLiarsOverTheBus", "telemetry.TestValuesSurviveTheWire", "exporter.TestScrapes"}, ""},
	{"one hung or dead GPU loses all", []string{"exporter.TestFaultIsolation", "collector.TestHungDeviceIsNamed", "cluster.TestDeviceStates"}, ""},
	{"a Telegraf consumer that acknowledges early", nil, "Telegraf reads host sensors on the node and carries nothing between processes of ours"},
	{"evicting on old data, without caps, back and forth, with no place to go", []string{"cluster.TestFreshness"}, ""},
}

// TestKnownTroubleIsGuarded keeps the list true: each case has tests that exist,
// or a reason why it is none of the collector's.
func TestKnownTroubleIsGuarded(t *testing.T) {
	if len(lyingTelemetry) != 9 || len(transportTrouble) != 27 {
		t.Errorf("%d and %d cases, want 9 and 27", len(lyingTelemetry), len(transportTrouble))
	}
	known := map[string]map[string]bool{}
	for _, c := range append(append([]trouble(nil), lyingTelemetry...), transportTrouble...) {
		if len(c.guards) == 0 && c.elsewhere == "" {
			t.Errorf("%q has neither a test nor a reason", c.what)
		}
		for _, g := range c.guards {
			folder, name, _ := strings.Cut(g, ".")
			if known[folder] == nil {
				known[folder] = testsOf(t, folder)
			}
			if !known[folder][name] {
				t.Errorf("%q rests on %s, which does not exist", c.what, g)
			}
		}
	}
}

// testsOf lists the tests of a folder that are not empty.
func testsOf(t *testing.T, folder string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Errorf("%s has no tests: %v", folder, err)
	}
	out := map[string]bool{}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Body != nil && len(f.Body.List) > 0 {
				out[f.Name.Name] = true
			}
		}
	}
	return out
}
