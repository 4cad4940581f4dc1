package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// producerQuota is the quota of the bytes that a client may produce in a second.
const producerQuota = "producer_byte_rate"

// readQuotas reads all quotas of the cluster.
func (f *Facts) readQuotas(ctx context.Context, c Conn) (err error) {
	f.quotas, err = c.Admin.DescribeClientQuotas(ctx, false, nil)
	var denied *kadm.AuthError
	if errors.As(err, &denied) {
		return kerr.ClusterAuthorizationFailed
	}
	if err != nil {
		return fmt.Errorf("read the quotas: %w", err)
	}
	return nil
}

// judgeQuotas finds the quotas that may apply to the app's clients. The client ids of the app begin with the
// app and the instance.
func (f *Facts) judgeQuotas() []Finding {
	var findings []Finding
	if f.throttled > 0 {
		findings = append(findings, Finding{
			Level: AtRisk, Text: fmt.Sprintf("the brokers delayed a response by %v because of a quota", f.throttled), Action: "raise the quota of the app's user or client ids with kafka-configs.sh --alter",
		})
	}
	for _, q := range f.quotas {
		if !f.concerned(q.Entity) {
			continue
		}
		finding := Finding{Level: Note, Text: fmt.Sprintf("%s has %s: a client over it is delayed", entityText(q.Entity), valuesText(q.Values)), Action: "raise it if the lag grows"}
		for _, v := range q.Values {
			if bytes := v.Value * f.Config.TransactionTimeout.Seconds(); v.Key == producerQuota && bytes < float64(f.largestRecord()) {
				finding.Level = AtRisk
				finding.Text = fmt.Sprintf("%s has %s: the largest record (%d bytes) takes longer than ONCEBUS_TRANSACTION_TIMEOUT (%v), so its transaction never commits", entityText(q.Entity), valuesText(q.Values), f.largestRecord(), f.Config.TransactionTimeout)
				finding.Action = fmt.Sprintf("raise %s, or ONCEBUS_TRANSACTION_TIMEOUT", producerQuota)
			}
		}
		findings = append(findings, finding)
	}
	if len(findings) == 0 {
		findings = append(findings, Finding{Text: "no quota applies to the app's clients"})
	}
	return findings
}

// concerned reports whether a quota may apply to a client of the app.
func (f *Facts) concerned(entity kadm.ClientQuotaEntity) bool {
	clients := f.Config.AppID + "-" + f.Config.InstanceID
	for _, part := range entity {
		switch {
		case part.Type != "user" && part.Type != "client-id":
			return false // such as ip
		case part.Name == nil: // the default of users or client ids
		case part.Type == "client-id" && !strings.HasPrefix(*part.Name, clients):
			return false
		case part.Type == "user" && f.Config.SASL.Username != "" && *part.Name != f.Config.SASL.Username:
			return false
		}
	}
	return true
}

// largestRecord returns the size in bytes of the largest record that an output of the app accepts.
func (f *Facts) largestRecord() int64 {
	var most int64
	for _, name := range f.topology.emissions {
		most = max(most, configInt(f.topology.settings[name], "max.message.bytes", defaultMaxBytes))
	}
	return most
}

func entityText(entity kadm.ClientQuotaEntity) string {
	var texts []string
	for _, part := range entity {
		name := "(default)"
		if part.Name != nil {
			name = *part.Name
		}
		texts = append(texts, part.Type+" "+name)
	}
	return strings.Join(texts, ", ")
}

func valuesText(values kadm.ClientQuotaValues) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, fmt.Sprintf("%s=%g", v.Key, v.Value))
	}
	return strings.Join(texts, ", ")
}
