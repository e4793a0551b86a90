"""What a cache may cost and still be a default, as src/lab/quality/statistics.h has it."""

PPL_RISE = 0.25  # perplexity above that of f16
KLD = 0.02  # mean divergence from f16, nats


def kept(rise, rise_error, kld, kld_error):
    """"pass", "FAIL" or "no verdict": two standard errors on either side of a limit decide; between them nothing does."""
    if rise - 2 * rise_error > PPL_RISE or kld - 2 * kld_error > KLD:
        return "FAIL"
    return "pass" if rise + 2 * rise_error <= PPL_RISE and kld + 2 * kld_error <= KLD else "no verdict"
