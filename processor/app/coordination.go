package app

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"oncebus/processor/kafka"
)

// Broker settings that can keep every group and every transaction from working.
const (
	offsetsFactor      = "offsets.topic.replication.factor"
	transactionsFactor = "transaction.state.log.replication.factor"
	transactionsInsync = "transaction.state.log.min.isr"
	sessionMin         = "group.min.session.timeout.ms"
	sessionMax         = "group.max.session.timeout.ms"
)

// readBrokerSettings reads the settings of all brokers. If the user lacks the right, the settings stay unknown.
// If a broker does not list a setting, that setting stays unknown.
func (f *Facts) readBrokerSettings(ctx context.Context, c Conn) {
	ids := make([]int32, len(f.brokers))
	for i := range f.brokers {
		ids[i] = f.brokers[i].id
	}
	described, err := c.Admin.DescribeBrokerConfigs(ctx, ids...)
	if err != nil || len(ids) == 0 {
		return
	}
	for _, broker := range described {
		if broker.Err == nil {
			f.brokerSettings = append(f.brokerSettings, settingsOf(broker))
		}
	}
}

// number returns the value of a numeric broker setting; false if it is unknown.
func number(settings map[string]string, name string) (int64, bool) {
	n, err := strconv.ParseInt(settings[name], 10, 64)
	return n, err == nil
}

// judgeCreation finds out whether Kafka cannot create the topics of its coordinators, because they need more
// replicas than the cluster has brokers. Without these topics no group can form and no transaction can begin.
func (f *Facts) judgeCreation() []Finding {
	var wrong []string
	for _, of := range []struct{ topic, setting string }{{offsetsTopic, offsetsFactor}, {transactionsTopic, transactionsFactor}} {
		for _, settings := range f.brokerSettings {
			factor, known := number(settings, of.setting)
			text := fmt.Sprintf("topic %s of %d replicas (%s)", of.topic, factor, of.setting)
			if known && f.fresh(of.topic) && factor > int64(f.topology.brokers) && !slices.Contains(wrong, text) {
				wrong = append(wrong, text)
			}
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	n := f.topology.brokers
	return []Finding{{
		Level: Fails, Text: fmt.Sprintf("Kafka cannot create %s: the cluster has fewer brokers (%d), so no group and no transaction begins", strings.Join(wrong, " and "), n),
		Action: fmt.Sprintf("start the other brokers, or set %s=%d, %s=%d and %s=%d on each broker and restart it", offsetsFactor, n, transactionsFactor, n, transactionsInsync, max(1, n-1)),
	}}
}

// judgeSession finds out whether the brokers would refuse the session timeout of the workers.
func (f *Facts) judgeSession() []Finding {
	timeout := f.SessionTimeout.Milliseconds()
	for _, settings := range f.brokerSettings {
		least, hasLeast := number(settings, sessionMin)
		most, hasMost := number(settings, sessionMax)
		if hasLeast && timeout < least || hasMost && timeout > most {
			ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
			return []Finding{{
				Level:  Fails,
				Text:   fmt.Sprintf("the brokers refuse ONCEBUS_SESSION_TIMEOUT=%v: %s is %v, %s is %v", f.SessionTimeout, sessionMin, ms(least), sessionMax, ms(most)),
				Action: fmt.Sprintf("set ONCEBUS_SESSION_TIMEOUT to a time between them, or change %s on the brokers", sessionMin),
			}}
		}
	}
	return nil
}

// CheckCoordination returns an error if no worker could join its group or begin a transaction with the current
// settings of the brokers. A session timeout that the brokers refuse is an operator error. If the settings
// cannot be read, CheckCoordination returns nil: the setup, which follows, reports the cause.
func (d Diagnosis) CheckCoordination(ctx context.Context) error {
	f := d.facts()
	if err := f.readBrokers(ctx, d.Conn); err != nil {
		return nil //nolint:nilerr // the setup, which follows, has the same error
	}
	f.readBrokerSettings(ctx, d.Conn)
	for _, finding := range f.judgeSession() {
		return kafka.OperatorErrorf("%s; %s", finding.Text, finding.Action)
	}
	for _, finding := range f.judgeCreation() {
		return fmt.Errorf("%s; %s", finding.Text, finding.Action)
	}
	return nil
}
