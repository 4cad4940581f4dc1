package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/processor/kafka"
)

// DescribeGroups describes consumer groups. A group that does not exist has no members. If a group cannot be
// described now, DescribeGroups returns an error that names it: such a group may have members.
func DescribeGroups(ctx context.Context, admin *kadm.Client, names ...string) (kadm.DescribedGroups, error) {
	return kafka.AskCoordinator(func() (kadm.DescribedGroups, error) { return describeGroups(ctx, admin, names...) })
}

func describeGroups(ctx context.Context, admin *kadm.Client, names ...string) (kadm.DescribedGroups, error) {
	groups, err := admin.DescribeGroups(ctx, names...)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		group, ok := groups[name]
		switch {
		case !ok:
			return nil, fmt.Errorf("describe group %s: the brokers did not answer for it", name)
		case group.Err != nil && !errors.Is(group.Err, kerr.GroupIDNotFound):
			return nil, fmt.Errorf("describe group %s: %w", name, group.Err)
		}
	}
	return groups, nil
}

// Rebalances reports whether a group is in a rebalance. A broker then describes the group's members without
// their assignments.
func Rebalances(group *kadm.DescribedGroup) bool {
	return group.State == "PreparingRebalance" || group.State == "CompletingRebalance"
}

// workerName matches the end of a worker's name in its group, which follows the app and the instance.
var workerName = regexp.MustCompile(`-(` + StageRoute + `|` + StageDedup + `)-[0-9]+$`)

// LiveInstances returns the sorted instance ids of the processes that have members in the groups of the app.
func LiveInstances(ctx context.Context, c Conn, app string) ([]string, error) {
	groups, err := DescribeGroups(ctx, c.Admin, GroupName(app, StageRoute), GroupName(app, StageDedup))
	if err != nil {
		return nil, err
	}
	live := map[string]bool{}
	for _, group := range groups {
		for _, member := range group.Members {
			if member.InstanceID == nil {
				continue
			}
			name := strings.TrimPrefix(*member.InstanceID, app+"-")
			if at := workerName.FindStringIndex(name); at != nil {
				live[name[:at[0]]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(live)), nil
}
