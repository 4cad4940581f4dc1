package app

import "context"

// readDecisions reads the refusals and unreadable rows that wait for a decision of an operator.
func (f *Facts) readDecisions(ctx context.Context, c Conn) error {
	if _, ok := f.topology.Topics[f.topology.Manifest]; !ok {
		return nil // the app has never run
	}
	rows, err := BadRows(ctx, c.Client, f.topology)
	if err != nil {
		return err
	}
	decisions, err := ReadDecisions(ctx, c.Client, f.topology, nil)
	if err != nil {
		return err
	}
	f.refusals = append(decisions.Sorted(), rows...)
	return nil
}

// judgeDecisions finds partitions that wait for an operator's decision, and rows of the app in the manifest
// topic that cannot be read.
func (f *Facts) judgeDecisions() (findings []Finding) {
	for i := range f.refusals {
		r := &f.refusals[i]
		findings = append(findings, Finding{Level: Fails, Text: r.Name() + " waits for a decision (" + string(r.Problem) + "): " + r.Detail, Action: r.Command()})
	}
	if findings == nil {
		return []Finding{{Level: OK, Text: "no partition waits for a decision"}}
	}
	return findings
}
