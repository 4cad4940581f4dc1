package processor

import (
	"context"
	"time"

	"oncebus/processor/app"
)

// diagnosisTimeout is how long a diagnosis waits for responses of the brokers.
const diagnosisTimeout = 30 * time.Second

// logFindings logs what a diagnosis finds at the start, unless it is fine. The start does
// not wait for it.
func (p *Processor) logFindings(ctx context.Context) {
	reading, cancel := context.WithTimeout(ctx, diagnosisTimeout)
	defer cancel()
	facts := app.ReadFacts(reading, p.conn(), p.cfg.Config, p.routes)
	if ctx.Err() == nil {
		app.LogFindings(ctx, p.log, facts.Diagnose())
	}
}
