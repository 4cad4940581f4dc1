package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// Disk has the facts about the disk of the local state.
type Disk struct {
	Dir string // the state directory, or its nearest existing parent
	// Free and Total are in bytes, and so are the levels Start and Pause. With less free space than Start, no
	// process starts; with less than Pause, tasks pause.
	Free, Total, Start, Pause uint64
	Network                   string // the network file system; "" for a local disk
	Refused                   error  // why a start refuses the directory, and what the operator can do
	Err                       error
}

// brokerDiskMin is a percentage of a broker's disk. With less free space the broker is at risk, because a broker
// whose disk is full stops.
const brokerDiskMin = 10

// readLogDirs reads the free and total space on the disks of the brokers.
func (f *Facts) readLogDirs(ctx context.Context, c Conn) error {
	topics := kadm.TopicsSet{}
	for _, name := range f.present(f.topology.all()) {
		topics.Add(name, 0)
	}
	dirs, err := c.Admin.DescribeAllLogDirs(ctx, topics)
	var denied *kadm.AuthError
	if errors.As(err, &denied) || errors.Is(err, kerr.ClusterAuthorizationFailed) {
		return nil // judgeDisks reports that the user lacks the right
	}
	if err != nil {
		return fmt.Errorf("read the disks of the brokers: %w", err)
	}
	f.logDirs = dirs
	return nil
}

// judgeDisks judges the disk of the local state and the disks of the brokers.
func (f *Facts) judgeDisks() []Finding {
	findings := []Finding{f.Disk.judge()}
	known := 0
	for _, dir := range f.logDirs.Sorted() {
		switch {
		case errors.Is(dir.Err, kerr.ClusterAuthorizationFailed):
		case dir.Err != nil:
			findings = append(findings, Finding{Level: AtRisk, Text: fmt.Sprintf("broker %d: its directory %s is offline: %v", dir.Broker, dir.Dir, dir.Err), Action: "replace the disk of the broker"})
		case dir.TotalBytes <= 0: // a broker older than Kafka 3.3 does not tell the size of its disk
		default:
			known++
			if percent := 100 * float64(dir.UsableBytes) / float64(dir.TotalBytes); percent < brokerDiskMin {
				findings = append(findings, Finding{
					Level: AtRisk, Text: fmt.Sprintf("broker %d: the disk of %s has %.1f %% free; a broker with a full disk stops", dir.Broker, dir.Dir, percent), Action: "free space, or add a disk",
				})
			}
		}
	}
	if known == 0 {
		return append(findings, Finding{Level: Unchecked, Text: "the disks of the brokers are not readable", Action: "oncebus runs without this right; a user with Describe on the cluster sees more"})
	}
	if len(findings) == 1 {
		findings = append(findings, Finding{Text: fmt.Sprintf("every disk of the brokers (%d) has at least %d %% free", known, brokerDiskMin)})
	}
	return findings
}

// judge judges the disk of the local state by the levels Start and Pause, which are settings.
func (d Disk) judge() Finding {
	const space = "free space, or set ONCEBUS_STATE_DIR to another disk; local state is rebuilt from the changelog"
	switch {
	case d.Refused != nil:
		return Finding{Level: Fails, Text: plain(d.Refused)}
	case d.Err != nil:
		return Finding{Level: Fails, Text: fmt.Sprintf("ONCEBUS_STATE_DIR: %v", d.Err), Action: "create the directory, or set another one"}
	case d.Network != "":
		return Finding{Level: Fails, Text: fmt.Sprintf("%s is on a network file system (%s), where locks and mapped files are not reliable", d.Dir, d.Network), Action: "set ONCEBUS_STATE_DIR to a local disk"}
	case d.Free < d.Start:
		return Finding{Level: Fails, Text: fmt.Sprintf("the disk of %s has %d MiB free, a start needs %d MiB", d.Dir, d.Free>>20, d.Start>>20), Action: space}
	case d.Free < d.Pause:
		return Finding{Level: AtRisk, Text: fmt.Sprintf("the disk of %s has %d MiB free, tasks pause below %d MiB", d.Dir, d.Free>>20, d.Pause>>20), Action: space}
	}
	return Finding{Text: fmt.Sprintf("the disk of %s has %d MiB free, tasks pause below %d MiB", d.Dir, d.Free>>20, d.Pause>>20)}
}
