"""placeholder until merged"""


def statistics(events, weights, error_rates={}):
    return {"labels": 0, "annotators": []}
